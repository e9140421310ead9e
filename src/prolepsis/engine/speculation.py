"""Between rows and proposers: who may draft how far, and what proposers learn of a step."""

from collections.abc import Sequence
from dataclasses import replace

from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.stats import PlainReason
from prolepsis.engine.ending import cut_after_end
from prolepsis.engine.request import Sample
from prolepsis.engine.rows import Row, Verdict
from prolepsis.spec.draft import Draft
from prolepsis.spec.leaving_out import LeavingOut
from prolepsis.spec.selection import ProposerSet
from prolepsis.spec.window import StepLoad

_PLAIN = SpeculationChoice(enabled=False)


class Speculation:
    """Asks the proposers for the decoding rows of a step and tells them what came of it."""

    def __init__(self, proposers: ProposerSet, *, max_step_tokens: int, max_model_len: int) -> None:
        self.proposers = proposers
        self._max_step_tokens = max_step_tokens
        self._max_model_len = max_model_len
        self._leaving_out = LeavingOut(proposers.ledger)
        self._told: dict[str, int] = {}
        """How many tokens of each live sample the proposers know."""

    def propose(self, rows: Sequence[Row], plan: SpecPlan) -> list[Row]:
        """Return the rows with drafts where a proposer has one worth verifying."""
        num_rows = sum(row.num_tokens for row in rows)
        room = self._max_step_tokens - num_rows
        if plan.num_speculative_tokens == 0 or plan.fixed_depth == 0 or not self.proposers.names:
            return list(rows)
        decoding = [row for row in rows if row.num_tokens == 1 and row.sample.key in self._told]
        load = StepLoad(num_rows, sum(row.start for row in rows), max(0, room))
        choices = [_choice(row.sample, plan) for row in decoding]
        decoding = self._with_drafts(decoding, choices, plan, load)
        decoding = self._with_shadows(decoding, choices, plan, load)
        drafted = {row.sample.key: row for row in decoding}
        return [drafted.get(row.sample.key, row) for row in rows]

    def learn(self, rows: Sequence[Row], verdicts: Sequence[Verdict | None], pass_s: float) -> None:
        """Tell the proposers what the step committed and the cost model what its pass took (seconds)."""
        num_rows, num_context = sum(row.num_rows for row in rows), sum(row.start for row in rows)
        self.proposers.observe_pass(num_rows, num_context, 1000.0 * pass_s)
        for row, verdict in zip(rows, verdicts, strict=True):
            if verdict is not None and row.sample.replays is None:
                self._learn_row(row)

    def forget(self, samples: Sequence[Sample]) -> None:
        """Tell the proposers which samples ended; those they were never told of are left out."""
        for sample in samples:
            if self._told.pop(sample.key, None) is not None:
                self.proposers.forget(sample)

    def _with_drafts(
        self, rows: list[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        limits = [
            0 if choice.shadow else self._limit(row.sample, choice) for row, choice in zip(rows, choices, strict=True)
        ]
        limits = [min(limit, load.max_draft_tokens) for limit in limits]
        samples, allowed = [row.sample for row in rows], self._allowed(rows, plan)
        forced = [choice.forced for choice in choices]
        drafts = self.proposers.propose(samples, limits, plan, load, allowed, forced=forced)
        return [
            replace(row, draft=_within_end(row, draft), plain=plain) if choice.enabled and not choice.shadow else row
            for row, choice, draft, plain in zip(rows, choices, drafts, self._plain(allowed), strict=True)
        ]

    def _with_shadows(
        self, rows: list[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        """Return the rows; those of samples in shadow that compare no draft yet have one for that."""
        due = [choice.shadow and row.sample.shadow is None for row, choice in zip(rows, choices, strict=True)]
        if not any(due):
            return rows
        limits = [
            min(self._limit(row.sample, choice), load.max_draft_tokens) if is_due else 0
            for row, choice, is_due in zip(rows, choices, due, strict=True)
        ]
        samples, allowed = [row.sample for row in rows], self._allowed(rows, plan)
        drafts = self.proposers.propose_shadow(samples, limits, plan, load, allowed)
        return [
            replace(row, shadow=_within_end(row, draft), plain=plain, shadow_spent=spent) if is_due else row
            for row, is_due, draft, plain, spent in zip(
                rows, due, drafts, self._plain(allowed), self.proposers.shadow_spent, strict=True
            )
        ]

    def _allowed(self, rows: Sequence[Row], plan: SpecPlan) -> list[tuple[str, ...] | None]:
        """Return who may draft for each row: as its request says, less those that the plan leaves out of its slice."""
        asked = [row.sample.request.source.speculation.proposers for row in rows]
        if not plan.left_out:
            return asked
        names = plan.proposers or self.proposers.names
        slices = (row.sample.slice for row in rows)
        return [self._leaving_out.allowed(*each, plan, names) for each in zip(slices, asked, strict=True)]

    def _plain(self, allowed: Sequence[tuple[str, ...] | None]) -> list[PlainReason | None]:
        """Return why rows got no draft, those included for which nobody is left that may draft."""
        plain = self.proposers.plain
        return [
            "breaker_open" if names == () and reason == "no_draft" else reason
            for names, reason in zip(allowed, plain, strict=True)
        ]

    def _limit(self, sample: Sample, choice: SpeculationChoice) -> int:
        """Return the most draft nodes the sample has a use for: the step emits one token more than it accepts."""
        if not choice.enabled:
            return 0
        left = sample.params.max_tokens - sample.num_output_tokens - 1
        limit = min(left, self._max_model_len - len(sample.tokens) - 1)
        return max(0, limit if choice.num_speculative_tokens is None else min(limit, choice.num_speculative_tokens))

    def _learn_row(self, row: Row) -> None:
        sample = row.sample
        if row.draft is not None:
            path = row.draft.follow(sample.tokens[row.start + row.num_tokens :])
            forced = sample.request.source.speculation.forced
            self.proposers.observe(row.draft, path, None if forced else sample.slice)
        num_new = len(sample.tokens) - self._told.get(sample.key, 0)
        self._told[sample.key] = len(sample.tokens)
        self.proposers.commit(sample, num_new)


def _choice(sample: Sample, plan: SpecPlan) -> SpeculationChoice:
    """Return what the request may do now: nothing where the rollout's run that it drafts under was stopped."""
    choice = sample.request.source.speculation
    return _PLAIN if choice.rollout_run in plan.stopped else choice


def _within_end(row: Row, draft: Draft | None) -> Draft | None:
    return None if draft is None else cut_after_end(draft, row.sample.end_ids)
