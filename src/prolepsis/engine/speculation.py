"""Asks proposers for drafts of a step's rows, within plan and request, and tells them what the step committed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from prolepsis.core.config import CANDIDATE_HEAD
from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import SpeculationChoice
from prolepsis.core.stats import PlainReason
from prolepsis.engine.ending import cut_after_end
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row, SampledTokens
from prolepsis.engine.timings import StepTiming
from prolepsis.spec.candidate import DraftRequest
from prolepsis.spec.choose import ChosenDraft, ProposerSet
from prolepsis.spec.comparison import AS_PREDICTED, StepCost
from prolepsis.spec.ledger import DisabledProposers, origin_of
from prolepsis.spec.payback import Payback
from prolepsis.spec.probes import PROBED_DRAFTS, ProbeBudget
from prolepsis.spec.shadow import ShadowBudget
from prolepsis.spec.window import StepLoad

_OFF = SpeculationChoice("off")
_PAUSED: tuple[PlainReason | None, ...] = ("too_costly", "breaker_open", "killed")
"""Reasons of a row that is left without drafts before proposers are asked."""


class Speculation:
    """Drafts for the decoding rows of a step; what a request may do follows from its choice and the plan."""

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
        self.proposers = proposers
        self.payback = payback
        """Leaves out drafts that do not pay, by the steps themselves; None: they cost what is predicted."""
        self._awake: frozenset[str] | None = None  # sequences that might draft in this step; None: any
        self._shadow_budget = ShadowBudget(shadow_cost)
        self.probes = ProbeBudget(clock) if payback is not None else None
        """What compares proposers that hardly draft; None: all drafts are verified."""
        self._clock = clock
        self._max_step_tokens = max_step_tokens
        self._max_model_len = max_model_len
        self._disabled = DisabledProposers(proposers.ledger)
        self._num_committed: dict[str, int] = {}
        """Tokens of each live sequence that the proposers know."""

    def may_draft(self, plan: SpecPlan, sequence: SequenceState, proposer: str | None = None) -> bool:
        """Return whether any proposer, or `proposer`, may draft for the sequence, to verify or to compare."""
        request = sequence.request
        is_spared = (
            self.payback is not None
            and request.source.speculation.mode == "auto"
            and self.payback.rests(sequence.key)
            and not (request.probes_left and sequence.num_output_tokens)
        )  # what a head reads of a probed request's prompt waits for the first draft, which pays for it
        if is_spared or not self._drafts(plan):  # first, as it holds for most rows of most steps
            return False
        choice = self._choice(sequence, plan)
        if not choice.enabled:
            return False
        if proposer is None:
            return True
        if kill_scope("proposer", proposer) in plan.killed:
            return False
        named = (names for names in (self._named(choice), plan.proposers) if names is not None)
        return choice.num_speculative_tokens != 0 and all(proposer in names for names in named)

    def propose(self, rows: Sequence[Row], plan: SpecPlan) -> list[Row]:
        """Return the rows, with drafts where a proposer has one worth verifying, or comparing in shadow."""
        self._awake = None
        if not self._drafts(plan):
            return list(rows)
        for row in rows:
            if row.sequence.request.probes_left is None:
                self._admit(row.sequence, plan)
        choices = [self._choice(row.sequence, plan) for row in rows]
        if not any(choice.enabled for choice in choices):
            return [_explained(row) for row in rows]
        places = [i for i, row in enumerate(rows) if row.decodes]
        chosen = [choices[i] for i in places]
        decoding = self._spared([rows[i] for i in places], chosen, plan, only_decodes=len(places) == len(rows))
        is_probed = any(_is_probed(row) for row in decoding)
        if is_probed or any(row.plain is None and one.enabled for row, one in zip(decoding, chosen, strict=True)):
            decoding = self._drafted(decoding, chosen, plan, self._load(rows, len(decoding)))
        drafted = list(rows)
        for i, row in zip(places, decoding, strict=True):
            drafted[i] = row
        return [_explained(row) for row in drafted]

    def learn(
        self, rows: Sequence[Row], sampled: Sequence[SampledTokens | None], plan: SpecPlan, pass_s: float
    ) -> None:
        """Tell the proposers what the step committed, and the budget of shadow what its pass took (seconds).

        Of sequences that may not draft they learn at the end, of those that pause before they draft again.
        """
        self._shadow_budget.passed(pass_s)
        for row, result in zip(rows, sampled, strict=True):
            if result is not None and not self._pauses(row) and self.may_draft(plan, row.sequence):
                self._learn_row(row)

    def _pauses(self, row: Row) -> bool:
        """Return whether the row's sequence was left without drafts in this step, as they do not pay now."""
        return row.plain in _PAUSED and self._awake is not None and row.sequence.key not in self._awake

    def observe(self, rows: Sequence[Row], timing: StepTiming) -> None:
        """Learn what a step took and brought that only decoded, its drafts all where they are expected to pay."""
        drafts: dict[str, tuple[int, int]] = {}
        awake, number = self._awake, len(rows)
        if self.payback is None or awake is None or not self.payback.is_due:
            return
        num_context = num_tokens = num_draft_tokens = 0
        for row in rows:
            sequence, start = row.sequence, row.start
            size = len(row.draft.tokens) if row.draft is not None else 0
            is_awake = sequence.key in awake
            if row.num_tokens > 1 or row.shadow is not None or (size and not is_awake):
                return
            if sequence.running and sequence.num_pending > 1:  # it read one token of several
                return
            num_emitted = len(sequence.tokens) - start - 1
            if num_emitted < 1:  # its request failed or was ended in the step, which says nothing about drafts
                return
            if is_awake:
                drafts[sequence.key] = (size, num_emitted - 1)
            num_context += start
            num_tokens += num_emitted
            num_draft_tokens += size
        plain_ms, verifying_ms = self.proposers.predicted_ms(number, num_draft_tokens, num_context)
        step_ms, drafting_ms = 1000.0 * timing.total, 1000.0 * (timing.propose + timing.learn)
        cost = StepCost(number, num_tokens, num_draft_tokens, step_ms, plain_ms, drafting_ms, verifying_ms)
        self.payback.observe(cost, drafts)

    def exchanged(self, proposer: str) -> None:
        """Another proposer has this name: nothing that was learned of the one before counts for it."""
        self._disabled.exchange(proposer)
        if self.probes is not None:
            self.probes.exchange(proposer)
        self.start_over()

    def start_over(self) -> None:
        """Forget which drafts paid: what was learned belongs to other proposers, or is not sound."""
        if self.payback is not None:
            self.payback.start_over()

    def forget(self, sequences: Sequence[SequenceState]) -> None:
        """Tell the proposers which sequences ended, with the tokens they do not know yet; nothing of replays."""
        for sequence in sequences:
            if self.payback is not None:
                self.payback.forget(sequence.key)
            num_new, known = 0, self._num_committed.pop(sequence.key, None)
            if sequence.num_output_tokens and sequence.replays is None and self.proposers.names:
                self._judge(sequence)
                num_new = len(sequence.tokens) - (known or 0)
            self._see_decided(sequence)
            if all(one.ended for one in sequence.request.sequences):
                self._shadow_budget.end(sequence.request.request_id)
            if known is not None or num_new:
                self.proposers.forget(sequence, num_new)

    def _see_decided(self, sequence: SequenceState) -> None:
        """Tell the probes of whom a request that ends had drafts verified or compared."""
        request = sequence.request
        if self.probes is not None and sequence is request.sequences[0]:
            for name in {*request.stats.proposers, *request.stats.shadow}:
                self.probes.saw(name, sequence.traffic_class)

    def _admit(self, sequence: SequenceState, plan: SpecPlan) -> None:
        """Decide once for a request what of it is compared: in shadow whether it drafts, else whether it is probed."""
        request = sequence.request
        if request.source.speculation.mode == "shadow" and not request.source.is_replay:
            request.shadow_admitted = self._shadow_budget.admit(request.request_id)
        choice = self._choice(sequence, plan)
        is_free = choice.mode == "auto" and plan.fixed_depth is None and choice.num_speculative_tokens != 0
        allowed = self._allowed(sequence, plan, compared=True)
        names = [name for name in self._or_all(allowed, plan) if name not in self.proposers.out]
        costly = [name for name in names if name not in self.proposers.free]
        budget = self.probes if is_free else None
        is_probed = budget is not None and budget.admit(sequence.traffic_class, costly or names)
        request.probes_left = PROBED_DRAFTS if is_probed else 0

    def _drafts(self, plan: SpecPlan) -> bool:
        return plan.ceiling > 0 and bool(self.proposers.names)

    def _load(self, rows: Sequence[Row], num_decoding: int) -> StepLoad:
        """Return what the pass carries before any draft."""
        num_tokens = sum(row.num_tokens for row in rows)
        correction = self.payback.correction(num_decoding) if self.payback is not None else AS_PREDICTED
        room = max(0, self._max_step_tokens - num_tokens)
        return StepLoad(num_tokens, sum(row.start for row in rows), room, correction)

    def _spared(
        self, rows: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, *, only_decodes: bool
    ) -> list[Row]:
        """Return the decoding rows; those that are left without drafts, as these do not pay now, with the reason."""
        if self.payback is None or plan.fixed_depth is not None:
            return list(rows)
        keys = [row.sequence.key for row, choice in zip(rows, choices, strict=True) if choice.mode == "auto"]
        if not keys:
            return list(rows)
        awake = self._awake = self.payback.begin(keys, len(rows), only_decodes=only_decodes)
        return [
            row if choice.mode != "auto" or row.sequence.key in awake else self._paused(row, plan)
            for row, choice in zip(rows, choices, strict=True)
        ]

    def _paused(self, row: Row, plan: SpecPlan) -> Row:
        """Return the row without drafts, as they do not pay now, or because no proposer may draft for it."""
        is_barred = (plan.disabled or plan.killed) and self._allowed(row.sequence, plan) == ()
        return replace(row, plain=self._barred(row, plan)) if is_barred else _too_costly(row)

    def _barred(self, row: Row, plan: SpecPlan) -> PlainReason:
        names = plan.proposers or self.proposers.names
        return self._disabled.reason(row.sequence.request.source.speculation.proposers, names)

    def _drafted(
        self, decoding: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        """Return the decoding rows with drafts, to verify or to compare, for all but those that are spared."""
        rows = list(decoding)
        for row, choice in zip(rows, choices, strict=True):
            if choice.enabled and (row.plain is None or _is_probed(row)):
                self._commit(row.sequence)  # tokens from before it might draft
        requests = self._requests(rows, choices, plan, load)
        for verify in (True, False):
            due = [_is_due(row, choice, verify=verify) for row, choice in zip(rows, choices, strict=True)]
            if any(due):
                rows = self._with_drafts(rows, due, requests, plan, load, verify=verify)
        return self._probed(rows, choices, plan, load) if any(map(_is_probed, rows)) else rows

    def _probed(
        self, rows: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[Row]:
        """Return the rows; those that are probed with a draft of all proposers to compare, whether or not it pays."""
        due = [_is_probed(row) and choice.mode == "auto" for row, choice in zip(rows, choices, strict=True)]
        began, names = time.thread_time(), self.proposers.names  # of the processor: not what others take of busy cores
        probes = [
            replace(
                request,
                allowed=self._allowed(row.sequence, plan, compared=True),
                always_verify=True,
                insists_on=names,
            )
            for row, request in zip(rows, self._requests(rows, choices, plan, load), strict=True)
        ]
        compared = self._with_drafts(rows, due, probes, plan, load, verify=False)
        if self.probes is not None:
            self.probes.spend(time.thread_time() - began)
        for row, is_due in zip(compared, due, strict=True):
            if is_due and row.shadow is not None:  # a head that lacks the prompt's states drafts from the next page on
                row.sequence.request.probes_left = (row.sequence.request.probes_left or 0) - 1
        return [replace(one, plain=row.plain) for row, one in zip(rows, compared, strict=True)]

    def _allowed(self, sequence: SequenceState, plan: SpecPlan, *, compared: bool = False) -> tuple[str, ...] | None:
        """Return the proposers that may draft for the sequence, less those that are disabled; None: all.

        `compared`: its draft is only compared, which is allowed of more.
        """
        allowed = self._named(sequence.request.source.speculation)
        if plan.disabled or plan.killed:
            names = plan.proposers or self.proposers.names
            return self._disabled.allowed(origin_of(sequence), allowed, plan, names, compared=compared)
        return allowed

    def _or_all(self, allowed: tuple[str, ...] | None, plan: SpecPlan) -> tuple[str, ...]:
        names = plan.proposers or self.proposers.names
        return names if allowed is None else tuple(name for name in allowed if name in names)

    def _requests(
        self, rows: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan, load: StepLoad
    ) -> list[DraftRequest]:
        """Return what each row may have: as its request says, less what is disabled or too costly to try."""
        requests = []
        for row, choice in zip(rows, choices, strict=True):
            sequence = row.sequence
            limit = min(self._limit(sequence, choice), load.max_draft_tokens)
            allowed = self._allowed(sequence, plan)
            if self.payback is not None and choice.mode == "auto" and self.payback.is_cheap(sequence.key):
                free = self.proposers.free
                candidates = self.proposers.names if allowed is None else allowed
                allowed = tuple(name for name in candidates if name in free) or allowed
            named = choice.proposers or () if choice.mode == "on" else ()
            requests.append(DraftRequest(sequence, limit, allowed, choice.mode == "on", named))
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
        barred = partial(self._barred, plan=plan)
        return [
            _with_draft(row, request, choice, barred, verify=verify) if is_due else row
            for row, request, choice, is_due in zip(rows, requests, chosen, due, strict=True)
        ]

    def _named(self, choice: SpeculationChoice) -> tuple[str, ...] | None:
        """Return the proposers that a request may have; None: all. A candidate head has to be named."""
        names = self.proposers.names
        if choice.proposers is not None or CANDIDATE_HEAD not in names:
            return choice.proposers
        return tuple(name for name in names if name != CANDIDATE_HEAD)

    @staticmethod
    def _choice(sequence: SequenceState, plan: SpecPlan) -> SpeculationChoice:
        """Return what the request may do now: nothing if it is a replay, not admitted to shadow, or stopped."""
        choice = sequence.request.source.speculation
        is_not_admitted = sequence.request.shadow_admitted is False
        is_stopped = choice.rollout_run in plan.stopped or plan.kills(sequence.request.source.kill_scopes)
        is_off = sequence.replays is not None or is_not_admitted or is_stopped
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
            self.proposers.observe(row.draft, path, origin_of(sequence) if is_weighed else None)
        self._commit(sequence)

    def _commit(self, sequence: SequenceState) -> None:
        num_new = len(sequence.tokens) - self._num_committed.get(sequence.key, 0)
        self._num_committed[sequence.key] = len(sequence.tokens)
        if num_new:
            self._judge(sequence)
            self.proposers.commit(sequence, num_new)  # last: a thread whose call is overdue does not come back from it

    def _judge(self, sequence: SequenceState) -> None:
        judged = sequence.request.stats.judged
        for proposer, draft in self.proposers.judge(sequence):
            judged.setdefault(proposer, []).append(draft)


def _is_probed(row: Row) -> bool:
    """Whether the row has no draft and its request's first drafts are compared in any case."""
    sequence, request = row.sequence, row.sequence.request
    return (
        bool(request.probes_left) and row.draft is None and sequence.shadow is None and sequence is request.sequences[0]
    )


def _is_due(row: Row, choice: SpeculationChoice, *, verify: bool) -> bool:
    """Whether the row may have a draft to verify, or else compares no draft in shadow yet."""
    if verify and row.plain is not None:
        return False
    return choice.mode in ("auto", "on") if verify else choice.mode == "shadow" and row.sequence.shadow is None


def _with_draft(
    row: Row, request: DraftRequest, choice: ChosenDraft, barred: Callable[[Row], PlainReason], *, verify: bool
) -> Row:
    """Return the row with its draft, or why it has none: what `barred` says, if no proposer may draft for it."""
    draft = None if choice.draft is None else cut_after_end(choice.draft, row.sequence.end_ids)
    plain: PlainReason | None = choice.plain
    if request.allowed == () and plain not in (None, "no_capacity"):
        plain = barred(row)
    if verify:
        return Row(row.sequence, row.start, row.num_tokens, draft, plain)  # `replace` takes five times as long
    return replace(row, shadow=draft, plain=plain, shadow_cost=choice.shadow_cost)


def _too_costly(row: Row) -> Row:
    """Return the row of a sequence that pauses: most steps of useless drafts are such."""
    return Row(row.sequence, row.start, row.num_tokens, None, "too_costly")  # `replace` takes five times as long


def _explained(row: Row) -> Row:
    """Return the row, with the reason if its request was not admitted to drafting in shadow."""
    if row.sequence.request.shadow_admitted is not False:
        return row
    is_out = row.samples_next and row.sequence.num_output_tokens > 0
    return replace(row, plain="shadow_budget") if is_out else row
