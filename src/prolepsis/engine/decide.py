"""Decides for each row of a step whether a draft is made to verify, made to compare, or none: a verdict.

Plan and choice of the request are read here and nowhere else. The order in which limits apply is in
docs/reference/ceilings.md.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from prolepsis.core.config import NAMED_HEADS
from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.plan import SpecPlan
from prolepsis.core.reasons import PlainReason
from prolepsis.core.requests import SpeculationChoice
from prolepsis.engine.drafting.candidate import DraftRequest
from prolepsis.engine.drafting.choose import ProposerSet
from prolepsis.engine.drafting.ledger import DisabledProposers, origin_of
from prolepsis.engine.drafting.payback import Payback
from prolepsis.engine.drafting.shadow import ShadowBudget
from prolepsis.engine.request import Request, SequenceState
from prolepsis.engine.rows import Row

SAMPLED_DRAFTS = 2  # drafts of a sampled request that are compared
_ENOUGH, _MEMORY_S = 8, 15.0
"""Requests with a decided draft, and the time in which there were so many where nothing has to be sampled."""
_OFF = SpeculationChoice("off")


@dataclass(frozen=True, slots=True)
class Plain:
    reason: PlainReason | None = None


@dataclass(frozen=True, slots=True)
class Ask:
    """A draft is made, and verified as far as it pays."""

    request: DraftRequest


@dataclass(frozen=True, slots=True)
class Compare:
    """A draft is made and only compared with the tokens that are emitted."""

    request: DraftRequest
    reason: PlainReason | None = None
    """Why it is not verified; None: its request is in shadow. Others are sampled, to judge proposers seldom asked."""


Verdict = Plain | Ask | Compare
_PLAIN = Plain()


@dataclass(slots=True)
class _Admission:
    """Decided once for a request, when its first row comes."""

    is_refused: bool  # it is in shadow, and the budget of shadow has no room for it
    num_samples: int = 0  # drafts that are still to be compared, of a request that is not in shadow


class Decisions:
    """The decisions of one engine. A step: `begin`, then `note` for each row to compare; `forget` what ended."""

    def __init__(
        self,
        proposers: ProposerSet,
        shadow_budget: ShadowBudget,
        payback: Payback | None,
        *,
        max_model_len: int,
        clock: Callable[[], float],
    ) -> None:
        """`payback` None: drafts cost what is predicted, and no request is sampled."""
        self.payback = payback
        self.active: Collection[str] | None = None
        """Sequences whose drafts are weighed and that may draft in this step; None: drafts are not weighed."""
        self.paused: Collection[str] = ()  # those left without drafts in this step, as they do not pay now
        self.num_sampled = 0
        self._proposers = proposers
        self._shadow_budget = shadow_budget
        self._clock = clock
        self._max_model_len = max_model_len
        self._disabled = DisabledProposers(proposers.ledger)
        self._admissions: dict[str, _Admission] = {}
        self._ended: dict[tuple[str, str], deque[float]] = {}
        """Times at which the last requests ended that had a draft decided, by proposer and traffic class."""

    def begin(self, rows: Sequence[Row], plan: SpecPlan, room: int) -> list[Verdict]:
        """Return a verdict for each row; `room`: draft nodes that fit the pass."""
        self.active, self.paused = None, ()
        if {row.sequence.request.source.speculation.mode for row in rows} <= {"off"} or not self.drafts(plan):
            return [_PLAIN] * len(rows)
        choices = [self._choice(row.sequence, plan).within(row.sequence.part) for row in rows]
        self._pause(rows, choices, plan)
        return [self._verdict(row, choice, plan, room) for row, choice in zip(rows, choices, strict=True)]

    def drafts(self, plan: SpecPlan) -> bool:
        """Return whether the plan lets any proposer draft."""
        return plan.ceiling > 0 and bool(self._proposers.names)

    def may_draft(self, plan: SpecPlan, sequence: SequenceState, proposer: str | None = None) -> bool:
        """Return whether any proposer, or `proposer`, may draft for the sequence, to verify or to compare."""
        is_off = sequence.request.source.speculation.mode == "off"  # first, as it holds for most rows of most steps
        if is_off or self._drops_states(sequence) or not self.drafts(plan):
            return False
        choice = self._choice(sequence, plan)
        if proposer is None or not choice.enabled:
            return choice.enabled
        is_killed = kill_scope("proposer", proposer) in plan.killed
        return not is_killed and any(  # in any part of the answer: it learns before that begins
            part.enabled and part.num_speculative_tokens != 0 and proposer in self._named(part, plan)
            for part in choice.inside or (choice,)
        )

    def barred(self, sequence: SequenceState, plan: SpecPlan) -> PlainReason | None:
        """Return what stops all proposers that might draft for the sequence; None: not all are stopped."""
        names = self._named(sequence.request.source.speculation.within(sequence.part), plan)
        is_barred = names and not self._disabled.allowed(origin_of(sequence), names, plan)
        return self._disabled.reason(names) if is_barred else None

    def note(self, row: Row) -> None:
        """Count a draft that is compared of a sampled request."""
        admission = self._admissions[row.sequence.request.request_id]
        admission.num_samples -= admission.num_samples > 0 and row.shadow is not None

    def exchange(self, proposer: str) -> None:
        """Start over for another proposer of this name, of which no draft was decided."""
        self._disabled.exchange(proposer)
        self._ended = {key: ended for key, ended in self._ended.items() if key[0] != proposer}

    def forget(self, sequence: SequenceState) -> None:
        request = sequence.request
        if self.payback is not None:
            for key in sequence.pause_keys:
                self.payback.forget(key)
        if sequence is request.sequences[0]:
            for name in {*request.stats.proposers, *request.stats.shadow}:
                ended = self._ended.setdefault((name, sequence.traffic_class), deque(maxlen=_ENOUGH))
                ended.append(self._clock())
        if not request.live:
            self._admissions.pop(request.request_id, None)
            self._shadow_budget.end(request.request_id)

    def _choice(self, sequence: SequenceState, plan: SpecPlan) -> SpeculationChoice:
        """Return what the request may do now: nothing if it is a replay, not admitted to shadow, or stopped."""
        source = sequence.request.source
        choice = source.speculation
        is_off = choice.mode == "off" or choice.rollout_run in plan.stopped or plan.kills(source.kill_scopes)
        is_off = is_off or sequence.replays is not None or self._admission(sequence.request, plan).is_refused
        return _OFF if is_off else choice

    def _admission(self, request: Request, plan: SpecPlan) -> _Admission:
        known = self._admissions.get(request.request_id)
        if known is None:
            is_shadow = request.source.speculation.mode == "shadow" and not request.source.is_replay
            is_refused = is_shadow and not self._shadow_budget.admit(request.request_id)
            known = self._admissions[request.request_id] = _Admission(is_refused)
            if self._is_sampled(request, plan):
                known.num_samples = SAMPLED_DRAFTS
                self.num_sampled += 1
        return known

    def _is_sampled(self, request: Request, plan: SpecPlan) -> bool:
        """Return whether a request that begins is sampled: a proposer that may draft for it is seldom judged."""
        choice, sequence = request.source.speculation, request.sequences[0]
        if self.payback is None or choice.mode != "auto" or plan.fixed_depth is not None:
            return False
        if choice.num_speculative_tokens == 0 or request.source.is_replay:
            return False
        allowed = self._allowed(sequence, choice, plan, compared=True)
        named = [proposer for proposer in self._proposers.contained if proposer.name in allowed]
        able = [proposer for proposer in named if not proposer.is_out and proposer.serves(sequence)]
        costly = [proposer for proposer in able if not proposer.free]
        now = self._clock()
        keys = [(proposer.name, sequence.traffic_class) for proposer in costly or able]
        ended: list[Sequence[float]] = [self._ended.get(key, ()) for key in keys]
        is_seldom = any(len(times) < _ENOUGH or now - times[0] > _MEMORY_S for times in ended)
        return is_seldom and self._shadow_budget.admit_sample(now)

    def _pause(self, rows: Sequence[Row], choices: Sequence[SpeculationChoice], plan: SpecPlan) -> None:
        decoding = [(row.sequence, choice.mode) for row, choice in zip(rows, choices, strict=True) if row.decodes]
        self._proposers.explore.earn(len(decoding))  # also where all drafts are only compared
        keys = [sequence.pause_key for sequence, mode in decoding if mode == "auto"]
        if self.payback is None or plan.fixed_depth is not None or not keys:
            return
        self.active = self.payback.begin(keys, len(decoding), only_decodes=len(decoding) == len(rows))
        self.paused = frozenset(keys).difference(self.active)

    def _verdict(self, row: Row, choice: SpeculationChoice, plan: SpecPlan, room: int) -> Verdict:
        sequence = row.sequence
        if not row.decodes:
            return _PLAIN
        if not choice.enabled:
            return Plain("shadow_budget") if self._admission(sequence.request, plan).is_refused else _PLAIN
        if choice.mode == "shadow":
            is_free = sequence.shadow is None
            return Compare(self._request(sequence, choice, plan, room)) if is_free else _PLAIN
        if sequence.pause_key not in self.paused:
            return Ask(self._request(sequence, choice, plan, room))
        reason = self.barred(sequence, plan) if plan.disabled or plan.killed else None
        reason = reason or "too_costly"
        request = sequence.request
        admission = self._admissions[request.request_id]
        if admission.num_samples > 0 and sequence is request.sequences[0] and sequence.shadow is None:
            limit = self._limit(sequence, choice, plan, room)
            allowed = self._allowed(sequence, choice, plan, compared=True)
            return Compare(DraftRequest(sequence, limit, allowed, always_verify=True, insists_on=allowed), reason)
        return Plain(reason)

    def _request(self, sequence: SequenceState, choice: SpeculationChoice, plan: SpecPlan, room: int) -> DraftRequest:
        allowed = self._allowed(sequence, choice, plan)
        limit, is_forced = self._limit(sequence, choice, plan, room), choice.mode == "always"
        insists_on = (choice.proposers or ()) if is_forced else ()
        return DraftRequest(sequence, limit, allowed, is_forced, insists_on, sequence.urgency)

    def _limit(self, sequence: SequenceState, choice: SpeculationChoice, plan: SpecPlan, room: int) -> int:
        """Return the most draft nodes of a sequence in this step: the least of all ceilings that are known before it.

        A step emits one token more than it accepts.
        """
        depth = plan.ceiling if choice.num_speculative_tokens is None else choice.num_speculative_tokens
        left = sequence.params.max_tokens - sequence.num_output_tokens - 1
        return max(0, min(plan.ceiling, depth, left, self._max_model_len - len(sequence.tokens) - 1, room))

    def _allowed(
        self, sequence: SequenceState, choice: SpeculationChoice, plan: SpecPlan, *, compared: bool = False
    ) -> tuple[str, ...]:
        """Return the proposers that may draft for the sequence, less those that are disabled.

        `compared`: its draft is only compared, which is allowed of more.
        """
        names = self._named(choice, plan)
        if plan.disabled or plan.killed:
            return self._disabled.allowed(origin_of(sequence), names, plan, compared=compared)
        return names

    def _named(self, choice: SpeculationChoice, plan: SpecPlan) -> tuple[str, ...]:
        """Return the proposers of plan and request; some heads have to be named by the request."""
        named, names = choice.proposers, self._proposers.names
        return tuple(
            name
            for name in names
            if (plan.proposers is None or name in plan.proposers)
            and (name not in NAMED_HEADS if named is None else name in named)
        )

    def _drops_states(self, sequence: SequenceState) -> bool:
        """Return whether nothing of the sequence need be kept for a proposer now, as its drafts do not pay.

        What a head reads of a sampled request's prompt waits for its first draft, which pays for it.
        """
        request = sequence.request
        if (
            self.payback is None
            or request.source.speculation.mode != "auto"
            or not all(map(self.payback.drops_states, sequence.pause_keys))
        ):
            return False
        admission = self._admissions.get(request.request_id)
        return not (admission is not None and admission.num_samples and sequence.num_output_tokens)
