"""Between rows and proposers: who may draft how far, and what proposers learn of a step."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.stats import PlainReason
from prolepsis.engine.ending import cut_after_end
from prolepsis.engine.request import Request, SequenceState
from prolepsis.engine.rows import Row, Verdict
from prolepsis.spec.draft import Draft
from prolepsis.spec.leaving_out import LeavingOut
from prolepsis.spec.selection import ProposerSet
from prolepsis.spec.shadow import ShadowBudget
from prolepsis.spec.window import StepLoad

Allowed = list[tuple[str, ...] | None]
"""For each row: names of the proposers that may draft for it; None: all."""
_PLAIN = SpeculationChoice("off")


class Speculation:
    """Asks the proposers for the decoding rows of a step and tells them what came of it."""

    def __init__(
        self,
        proposers: ProposerSet,
        *,
        max_step_tokens: int,
        max_model_len: int,
        shadow_cost: float = 1.0,  # drafting in shadow may take this share of the passes' time; 1: whatever it takes
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.proposers = proposers
        self._shadow_budget = ShadowBudget(shadow_cost)
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._max_model_len = max_model_len
        self._leaving_out = LeavingOut(proposers.ledger)
        self._told: dict[str, int] = {}
        """How many tokens of each live sequence the proposers know."""

    def may_draft(self, plan: SpecPlan, sequence: SequenceState, proposer: str | None = None) -> bool:
        """Return whether any proposer, or `proposer`, may draft for the sequence, to verify or to compare."""
        choice = self._choice(sequence, plan)
        if not choice.enabled or not self._drafts(plan):
            return False
        if proposer is None:
            return True
        named = (names for names in (choice.proposers, plan.proposers) if names is not None)
        return choice.num_speculative_tokens != 0 and all(proposer in names for names in named)

    def propose(self, rows: Sequence[Row], plan: SpecPlan) -> list[Row]:
        """Return the rows with drafts where a proposer has one worth verifying."""
        if not self._drafts(plan):
            return list(rows)
        for row in rows:
            self._draw(row.sequence.request)
        choices = {row.sequence.key: self._choice(row.sequence, plan) for row in rows}
        if not any(choice.enabled for choice in choices.values()):
            return [_told_why(row) for row in rows]
        num_rows = sum(row.num_tokens for row in rows)
        load = StepLoad(num_rows, sum(row.start for row in rows), max(0, self._max_step_tokens - num_rows))
        decoding = [row for row in rows if row.num_tokens == 1 and row.sequence.num_output_tokens]
        for row in decoding:
            if choices[row.sequence.key].enabled:
                self._commit(row.sequence)  # what was emitted while it might not draft
        asked = [choices[row.sequence.key] for row in decoding]
        allowed = self._allowed(decoding, plan)
        decoding = self._with_drafts(decoding, asked, allowed, plan, load)
        decoding = self._with_shadows(decoding, asked, allowed, plan, load)
        drafted = {row.sequence.key: row for row in decoding}
        return [_told_why(drafted.get(row.sequence.key, row)) for row in rows]

    def learn(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None], plan: SpecPlan, pass_s: float) -> None:
        """Tell the proposers what the step committed and the cost model what its pass took (seconds).

        Of sequences that may not draft they learn at the end.
        """
        num_rows, num_context = sum(row.num_rows for row in rows), sum(row.start for row in rows)
        self.proposers.observe_pass(num_rows, num_context, 1000.0 * pass_s)
        self._shadow_budget.passed(pass_s)
        for row, verdict in zip(rows, verdicts, strict=True):
            if verdict is not None and self.may_draft(plan, row.sequence):
                self._learn_row(row)

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Tell the proposers which sequences ended, and what they do not know of them yet; nothing of replays."""
        for sequence in sequences:
            if sequence.num_output_tokens and sequence.replays is None and self.proposers.names:
                self._commit(sequence)
            if self._told.pop(sequence.key, None) is not None:
                self.proposers.forget(sequence)
            if all(one.ended for one in sequence.request.sequences):
                self._shadow_budget.end(sequence.request.request_id)

    def _draw(self, request: Request) -> None:
        """Decide for a request in shadow that begins whether it is compared, or put off."""
        if request.compared is None and request.source.speculation.mode == "shadow" and not request.source.is_replay:
            request.compared = self._shadow_budget.admit(request.request_id)

    def _drafts(self, plan: SpecPlan) -> bool:
        return plan.num_speculative_tokens > 0 and plan.fixed_depth != 0 and bool(self.proposers.names)

    def _with_drafts(
        self, rows: list[Row], choices: Sequence[SpeculationChoice], allowed: Allowed, plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        if not any(choice.mode in ("auto", "on") for choice in choices):
            return rows
        limits = [
            0 if choice.mode == "shadow" else min(self._limit(row.sequence, choice), load.max_draft_tokens)
            for row, choice in zip(rows, choices, strict=True)
        ]
        sequences, forced = [row.sequence for row in rows], [choice.mode == "on" for choice in choices]
        drafts = self.proposers.propose(sequences, limits, plan, load, allowed, forced=forced)
        return [
            replace(row, draft=_within_end(row, draft), plain=plain) if choice.mode in ("auto", "on") else row
            for row, choice, draft, plain in zip(rows, choices, drafts, self._plain(allowed), strict=True)
        ]

    def _with_shadows(
        self, rows: list[Row], choices: Sequence[SpeculationChoice], allowed: Allowed, plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        """Return the rows; those of sequences in shadow that compare no draft yet have one for that."""
        due = [
            choice.mode == "shadow" and row.sequence.shadow is None for row, choice in zip(rows, choices, strict=True)
        ]
        if not any(due):
            return rows
        began = self._clock()
        limits = [
            min(self._limit(row.sequence, choice), load.max_draft_tokens) if is_due else 0
            for row, choice, is_due in zip(rows, choices, due, strict=True)
        ]
        drafts = self.proposers.propose_shadow([row.sequence for row in rows], limits, plan, load, allowed)
        plain, spent = self._plain(allowed), self.proposers.shadow_spent
        compared = [
            replace(row, shadow=_within_end(row, drafts[i]), plain=plain[i], shadow_spent=spent[i]) if due[i] else row
            for i, row in enumerate(rows)
        ]
        self._shadow_budget.spend(self._clock() - began)
        return compared

    def _allowed(self, rows: Sequence[Row], plan: SpecPlan) -> Allowed:
        """Return the proposers that may draft for each row: those of its request that the plan allows."""
        asked = [row.sequence.request.source.speculation.proposers for row in rows]
        if not plan.left_out:
            return asked
        names = plan.proposers or self.proposers.names
        traffic_classes = (row.sequence.traffic_class for row in rows)
        return [self._leaving_out.allowed(*each, plan, names) for each in zip(traffic_classes, asked, strict=True)]

    def _plain(self, allowed: Allowed) -> list[PlainReason | None]:
        """Return why rows got no draft, those included for which nobody is left that may draft."""
        plain = self.proposers.plain
        return [
            "breaker_open" if names == () and reason == "no_draft" else reason
            for names, reason in zip(allowed, plain, strict=True)
        ]

    @staticmethod
    def _choice(sequence: SequenceState, plan: SpecPlan) -> SpeculationChoice:
        """Return what the request may do now: nothing if it is a replay, or put off, or its run was stopped."""
        choice = sequence.request.source.speculation
        is_plain = (
            sequence.replays is not None or sequence.request.compared is False or choice.rollout_run in plan.stopped
        )
        return _PLAIN if is_plain else choice

    def _limit(self, sequence: SequenceState, choice: SpeculationChoice) -> int:
        """Return the most draft nodes the sequence has a use for: the step emits one token more than it accepts."""
        if not choice.enabled:
            return 0
        left = sequence.params.max_tokens - sequence.num_output_tokens - 1
        limit = min(left, self._max_model_len - len(sequence.tokens) - 1)
        return max(0, limit if choice.num_speculative_tokens is None else min(limit, choice.num_speculative_tokens))

    def _learn_row(self, row: Row) -> None:
        sequence = row.sequence
        if row.draft is not None:
            path = row.draft.follow(sequence.tokens[row.start + row.num_tokens :])
            forced = sequence.request.source.speculation.mode == "on"
            self.proposers.observe(row.draft, path, None if forced else sequence.traffic_class)
        self._commit(sequence)

    def _commit(self, sequence: SequenceState) -> None:
        num_new = len(sequence.tokens) - self._told.get(sequence.key, 0)
        self._told[sequence.key] = len(sequence.tokens)
        if num_new:
            self.proposers.commit(sequence, num_new)


def _told_why(row: Row) -> Row:
    """Return the row; one of a request in shadow that is put off says so."""
    is_put_off = row.sequence.request.compared is False and row.samples_next and row.sequence.num_output_tokens > 0
    return replace(row, plain="put_off") if is_put_off else row


def _within_end(row: Row, draft: Draft | None) -> Draft | None:
    return None if draft is None else cut_after_end(draft, row.sequence.end_ids)
