"""Asks proposers for drafts of a step's rows, within plan and request, and tells them what the step committed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.stats import PlainReason
from prolepsis.engine.ending import cut_after_end
from prolepsis.engine.request import Request, SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.spec.candidate import DraftRequest
from prolepsis.spec.choose import ChosenDraft, ProposerSet
from prolepsis.spec.ledger import DisabledProposers
from prolepsis.spec.shadow import ShadowBudget
from prolepsis.spec.window import StepLoad

_OFF = SpeculationChoice("off")


class Speculation:
    """Drafts for the decoding rows of a step; what a request may do follows from its choice and the plan."""

    def __init__(
        self,
        proposers: ProposerSet,
        *,
        max_step_tokens: int,
        max_model_len: int,
        shadow_cost: float = 1.0,  # share of the passes' time that drafting in shadow may take; 1: no bound
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.proposers = proposers
        self._shadow_budget = ShadowBudget(shadow_cost)
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._max_model_len = max_model_len
        self._disabled = DisabledProposers(proposers.ledger)
        self._num_committed: dict[str, int] = {}
        """Tokens of each live sequence that the proposers know."""

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
        """Return the rows, with drafts where a proposer has one worth verifying, or comparing in shadow."""
        if not self._drafts(plan):
            return list(rows)
        for row in rows:
            self._admit_to_shadow(row.sequence.request)
        choices = {row.sequence.key: self._choice(row.sequence, plan) for row in rows}
        if not any(choice.enabled for choice in choices.values()):
            return [_explained(row) for row in rows]
        num_tokens = sum(row.num_tokens for row in rows)
        load = StepLoad(num_tokens, sum(row.start for row in rows), max(0, self._max_step_tokens - num_tokens))
        decoding = [row for row in rows if row.num_tokens == 1 and row.sequence.num_output_tokens]
        for row in decoding:
            if choices[row.sequence.key].enabled:
                self._commit(row.sequence)  # tokens from before it might draft
        chosen = [choices[row.sequence.key] for row in decoding]
        requests = self._requests(decoding, chosen, plan, load)
        for verify in (True, False):
            due = [_is_due(row, choice, verify=verify) for row, choice in zip(decoding, chosen, strict=True)]
            if any(due):
                decoding = self._with_drafts(decoding, due, requests, plan, load, verify=verify)
        drafted = {row.sequence.key: row for row in decoding}
        return [_explained(drafted.get(row.sequence.key, row)) for row in rows]

    def learn(
        self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], plan: SpecPlan, pass_s: float
    ) -> None:
        """Tell the proposers what the step committed and the cost model what its pass took (seconds).

        Of sequences that may not draft they learn at the end.
        """
        num_tokens, num_context = sum(row.num_scheduled_tokens for row in rows), sum(row.start for row in rows)
        self.proposers.observe_pass(num_tokens, num_context, 1000.0 * pass_s)
        self._shadow_budget.passed(pass_s)
        for row, result in zip(rows, sampled, strict=True):
            if result is not None and self.may_draft(plan, row.sequence):
                self._learn_row(row)

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Tell the proposers which sequences ended, with the tokens they do not know yet; nothing of replays."""
        for sequence in sequences:
            if sequence.num_output_tokens and sequence.replays is None and self.proposers.names:
                self._commit(sequence)
            if self._num_committed.pop(sequence.key, None) is not None:
                self.proposers.forget(sequence)
            if all(one.ended for one in sequence.request.sequences):
                self._shadow_budget.end(sequence.request.request_id)

    def _admit_to_shadow(self, request: Request) -> None:
        """Decide once for a request in shadow whether the budget lets it draft."""
        is_shadow = request.source.speculation.mode == "shadow" and not request.source.is_replay
        if request.shadow_admitted is None and is_shadow:
            request.shadow_admitted = self._shadow_budget.admit(request.request_id)

    def _drafts(self, plan: SpecPlan) -> bool:
        return plan.ceiling > 0 and bool(self.proposers.names)

    def _requests(
        self, rows: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[DraftRequest]:
        """Return what each row may have: as its request says, less the proposers that the plan disables for it."""
        requests = []
        for row, choice in zip(rows, choices, strict=True):
            sequence = row.sequence
            limit = min(self._limit(sequence, choice), load.max_draft_tokens)
            allowed = sequence.request.source.speculation.proposers
            if plan.disabled:
                names = plan.proposers or self.proposers.names
                allowed = self._disabled.allowed(sequence.traffic_class, allowed, plan, names)
            requests.append(DraftRequest(sequence, limit, allowed, choice.mode == "on"))
        return requests

    def _with_drafts(
        self,
        rows: Sequence[Row],
        due: Sequence[bool],
        requests: Sequence[DraftRequest],
        plan: SpecPlan,
        load: StepLoad,
        *,
        verify: bool,
    ) -> list[Row]:
        """Return the rows; those that are due with the drafts to verify, or else to compare in shadow."""
        began = self._clock()
        wanted = [
            one if is_due else replace(one, limit=0, always_verify=False)
            for one, is_due in zip(requests, due, strict=True)
        ]
        chosen = self.proposers.propose(wanted, plan, load, verify=verify)
        if not verify:
            self._shadow_budget.spend(self._clock() - began)
        return [
            _with_draft(row, request, choice, verify=verify) if is_due else row
            for row, request, choice, is_due in zip(rows, requests, chosen, due, strict=True)
        ]

    @staticmethod
    def _choice(sequence: SequenceState, plan: SpecPlan) -> SpeculationChoice:
        """Return what the request may do now: nothing if it is a replay, not admitted to shadow, or stopped."""
        choice = sequence.request.source.speculation
        is_not_admitted = sequence.request.shadow_admitted is False
        is_off = sequence.replays is not None or is_not_admitted or choice.rollout_run in plan.stopped
        return _OFF if is_off else choice

    def _limit(self, sequence: SequenceState, choice: SpeculationChoice) -> int:
        """Return the most draft nodes that the sequence can use: a step emits one token more than it accepts."""
        if not choice.enabled:
            return 0
        left = sequence.params.max_tokens - sequence.num_output_tokens - 1
        limit = min(left, self._max_model_len - len(sequence.tokens) - 1)
        return max(0, limit if choice.num_speculative_tokens is None else min(limit, choice.num_speculative_tokens))

    def _learn_row(self, row: Row) -> None:
        sequence = row.sequence
        if row.draft is not None:
            path = row.draft.follow(sequence.tokens[row.start + row.num_tokens :])
            is_weighed = sequence.request.source.speculation.mode != "on"
            self.proposers.observe(row.draft, path, sequence.traffic_class if is_weighed else None)
        self._commit(sequence)

    def _commit(self, sequence: SequenceState) -> None:
        num_new = len(sequence.tokens) - self._num_committed.get(sequence.key, 0)
        self._num_committed[sequence.key] = len(sequence.tokens)
        if num_new:
            self.proposers.commit(sequence, num_new)


def _is_due(row: Row, choice: SpeculationChoice, *, verify: bool) -> bool:
    """Whether the row may have a draft to verify, or else compares no draft in shadow yet."""
    return choice.mode in ("auto", "on") if verify else choice.mode == "shadow" and row.sequence.shadow is None


def _with_draft(row: Row, request: DraftRequest, choice: ChosenDraft, *, verify: bool) -> Row:
    """Return the row with its draft, or why it has none: the breaker, if no proposer may draft for it."""
    draft = None if choice.draft is None else cut_after_end(choice.draft, row.sequence.end_ids)
    plain: PlainReason | None = choice.plain
    if request.allowed == () and plain == "no_draft":
        plain = "breaker_open"
    if verify:
        return Row(row.sequence, row.start, row.num_tokens, draft, plain)  # `replace` takes five times as long
    return replace(row, shadow=draft, plain=plain, shadow_cost=choice.shadow_cost)


def _explained(row: Row) -> Row:
    """Return the row, with the reason if its request was not admitted to drafting in shadow."""
    is_out = row.sequence.request.shadow_admitted is False and row.samples_next and row.sequence.num_output_tokens > 0
    return replace(row, plain="shadow_budget") if is_out else row
