"""Asks proposers for the drafts of a step, as was decided for its rows, and teaches them what the step committed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from prolepsis.core.plan import SpecPlan
from prolepsis.core.reasons import PlainReason
from prolepsis.core.stats import JudgedDraft
from prolepsis.engine.decide import Ask, Compare, Decisions, Plain, Verdict
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ChosenDraft, ProposerSet
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.ledger import origin_of
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.shadow import ShadowBudget
from prolepsis.engine.drafting.window import StepLoad
from prolepsis.engine.drafting.worth import AS_PREDICTED, StepCost
from prolepsis.engine.ending import cut_after_end
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.timings import StepTiming

Judged = tuple[SequenceState, str, JudgedDraft]
"""A sequence, a proposer, and one of the first drafts of that for it."""


class Speculation:
    """Drafts for the decoding rows of a step (`Decisions`)."""

    def __init__(
        self,
        proposers: ProposerSet,
        *,
        max_step_tokens: int,
        max_model_len: int,
        shadow_cost: float = 1.0,  # share of the passes' time that drafting in shadow may take; 1: no bound
        payback: Payback | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`payback` None: drafts cost what is predicted."""
        self.proposers = proposers
        self.shadow_budget = ShadowBudget(shadow_cost)
        self.decisions = Decisions(proposers, self.shadow_budget, payback, max_model_len=max_model_len, clock=clock)
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._num_committed: dict[str, int] = {}  # tokens of each live sequence that the proposers know
        self._judged: list[Judged] = []

    def propose(self, rows: Sequence[Row], plan: SpecPlan) -> list[Row]:
        """Return the rows with drafts, to verify or to compare, where a proposer has one; others with the reason."""
        room = max(0, self._max_step_tokens - sum(row.num_tokens for row in rows))
        verdicts = self.decisions.begin(rows, plan, room)
        drafting = [i for i, verdict in enumerate(verdicts) if isinstance(verdict, Ask)]
        compared = [i for i, verdict in enumerate(verdicts) if isinstance(verdict, Compare)]
        drafted = list(rows)
        for i, verdict in enumerate(verdicts):
            if isinstance(verdict, Plain) and verdict.reason is not None:  # `replace` takes five times as long
                drafted[i] = Row(rows[i].sequence, rows[i].start, rows[i].num_tokens, None, verdict.reason)
        if drafting or compared:
            for i in (*drafting, *compared):
                self._commit(rows[i].sequence)  # tokens from before it might draft
                if rows[i].sequence.request.source.records_drafts:
                    self.proposers.records.begin(rows[i].sequence)
            number, payback = sum(row.decodes for row in rows), self.decisions.payback
            correction = payback.correction(number) if payback is not None else AS_PREDICTED
            num_tokens, num_context = sum(row.num_tokens for row in rows), sum(row.start for row in rows)
            load = StepLoad(num_tokens, num_context, room, correction, number)
            self._verify(drafted, drafting, verdicts, plan, load)
            self._compare(drafted, compared, verdicts, plan, load)
            for i in compared:
                self.decisions.note(drafted[i])
        return drafted

    def learn(
        self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], plan: SpecPlan, pass_s: float
    ) -> None:
        """Teach the proposers what the step committed, and the budget of shadow what its pass took (seconds).

        Of sequences that may not draft they learn at the end, of those that pause before they draft again.
        """
        decisions = self.decisions
        self.shadow_budget.passed(pass_s)
        for row, result in zip(rows, sampled, strict=True):
            sequence = row.sequence
            has_begun = result is not None and sequence.num_output_tokens > 0
            if has_begun and sequence.pause_key not in decisions.paused and decisions.may_draft(plan, sequence):
                if row.draft is not None:
                    path = row.draft.follow(sequence.tokens[row.start + row.num_tokens :])
                    is_weighed = sequence.request.source.speculation.mode != "always"
                    self.proposers.observe(row.draft, path, origin_of(sequence) if is_weighed else None)
                self._commit(sequence)

    def observe(self, rows: Sequence[Row], timing: StepTiming) -> None:
        """Update cost and gain from a decode-only step in which every draft was expected to pay."""
        drafts: dict[str, tuple[int, int]] = {}
        payback, active, number = self.decisions.payback, self.decisions.active, len(rows)
        if payback is None or active is None or not payback.is_due:
            return
        num_context = num_tokens = num_draft_tokens = 0
        for row in rows:
            sequence, start = row.sequence, row.start
            size = len(row.draft.tokens) if row.draft is not None else 0
            is_active = sequence.pause_key in active
            if row.num_tokens > 1 or row.shadow is not None or (size and not is_active):
                return
            if sequence.running and sequence.num_pending > 1:  # it read one token of several
                return
            num_emitted = len(sequence.tokens) - start - 1
            if num_emitted < 1:  # its request failed or was ended in the step, which says nothing about drafts
                return
            if is_active:
                drafts[sequence.pause_key] = (size, num_emitted - 1)
            num_context += start
            num_tokens += num_emitted
            num_draft_tokens += size
        plain_ms, verifying_ms = self.proposers.predicted_ms(number, num_draft_tokens, num_context)
        step_ms, drafting_ms = 1000.0 * timing.total, 1000.0 * (timing.propose + timing.learn)
        payback.observe(
            StepCost(number, num_tokens, num_draft_tokens, step_ms, plain_ms, drafting_ms, verifying_ms), drafts
        )

    def take_judged(self) -> list[Judged]:
        """Return the drafts that were judged since the last call, among the first of their proposer for a sequence."""
        judged, self._judged = self._judged, []
        return judged

    def exchanged(self, proposer: str) -> None:
        """Forget what was learned of a proposer: another one has its name."""
        self.decisions.exchange(proposer)
        self.start_over()

    def start_over(self) -> None:
        """Forget which drafts paid: what was learned belongs to other proposers, or is not sound."""
        if self.decisions.payback is not None:
            self.decisions.payback.start_over()

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Notify proposers of sequences that ended, with the tokens they do not know yet; not of replays."""
        for sequence in sequences:
            self.decisions.forget(sequence)
            for proposer, drafts in self.proposers.records.end(sequence, sequence.index).items():
                sequence.request.stats.drafts.setdefault(proposer, []).extend(drafts)
            num_new, known = 0, self._num_committed.pop(sequence.key, None)
            if sequence.num_output_tokens and sequence.replays is None and self.proposers.names:
                self._judge(sequence)
                num_new = len(sequence.tokens) - (known or 0)
            if known is not None or num_new:
                self.proposers.forget(sequence, num_new)

    def _verify(
        self, rows: list[Row], places: Sequence[int], verdicts: Sequence[Verdict], plan: SpecPlan, load: StepLoad
    ) -> None:
        requests = [verdict.request for verdict in verdicts if isinstance(verdict, Ask)]
        chosen = self.proposers.propose(requests, plan, load) if requests else []
        for i, request, choice in zip(places, requests, chosen, strict=True):
            row, draft = rows[i], self._cut(rows[i], choice.draft)
            reason = self._reason(request, row.sequence, choice, plan)
            rows[i] = Row(row.sequence, row.start, row.num_tokens, draft, reason)  # `replace` takes five times as long

    def _compare(
        self, rows: list[Row], places: Sequence[int], verdicts: Sequence[Verdict], plan: SpecPlan, load: StepLoad
    ) -> None:
        compared = [verdict for verdict in verdicts if isinstance(verdict, Compare)]
        if not compared:
            return
        began = self._clock()
        chosen = self.proposers.compare([verdict.request for verdict in compared], plan, load)
        self.shadow_budget.spend(self._clock() - began)
        for i, verdict, choice in zip(places, compared, chosen, strict=True):
            row, draft = rows[i], self._cut(rows[i], choice.draft)
            reason = verdict.reason or self._reason(verdict.request, row.sequence, choice, plan)
            rows[i] = replace(row, shadow=draft, plain=reason, shadow_cost=choice.shadow_cost)

    @staticmethod
    def _cut(row: Row, draft: Draft | None) -> Draft | None:
        return None if draft is None else cut_after_end(draft, row.sequence.end_ids)

    def _reason(
        self, request: DraftRequest, sequence: SequenceState, choice: ChosenDraft, plan: SpecPlan
    ) -> PlainReason | None:
        """Return why a row has no draft: what stops all proposers that might draft for it comes first."""
        if request.allowed or choice.plain in (None, "no_capacity"):
            return choice.plain
        return self.decisions.barred(sequence, plan) or choice.plain

    def _commit(self, sequence: SequenceState) -> None:
        num_new = len(sequence.tokens) - self._num_committed.get(sequence.key, 0)
        self._num_committed[sequence.key] = len(sequence.tokens)
        if num_new:
            self._judge(sequence)
            self.proposers.commit(sequence, num_new)  # last: a thread whose call is overdue does not come back from it

    def _judge(self, sequence: SequenceState) -> None:
        self._judged += [(sequence, proposer, draft) for proposer, draft in self.proposers.judge(sequence)]
