"""The rollouts of a server: they are stepped on a clock and stored, and the engine stops what is rolled back."""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.policy.model import Policy, Terms
from prolepsis.control.rollout.live import LiveRollout, referenced, step_with_references, stopped_runs, targets_of
from prolepsis.control.rollout.machine import (
    JUDGED,
    Command,
    Phase,
    RolloutEvent,
    RolloutState,
    Transition,
    canary_share,
    command,
    judgement_on,
    outcome_on,
)
from prolepsis.control.rollout.metrics import RolloutMetrics
from prolepsis.control.rollout.observation import observed
from prolepsis.control.rollout.promotion import check, missing, outlook
from prolepsis.control.rollout.replicas import ReplicaExchange
from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.rollout.units import UnitKey, Units
from prolepsis.control.statistics.guardrail import Outcome
from prolepsis.control.statistics.judge import Judgement
from prolepsis.control.statistics.window import MINUTE_S, WINDOW_MINUTES
from prolepsis.control.verdict.verdict import RolloutStanding, RuleVerdict
from prolepsis.control.web.feature import Feature
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.clock import SteadyClock
from prolepsis.core.ended import Assignment, RequestEnded
from prolepsis.core.errors import InvalidParameter, RolloutConflict, RolloutNotFound, StoreUnavailable
from prolepsis.core.messages import Control, StopRun

MAX_LEFT = 32  # rollouts of earlier policies that are kept in memory, in case their rules return

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    id: str
    rule: str
    policy_version: str
    phase: Phase
    stage: str  # name of the current stage, or of the last one once the rollout is on
    stage_number: int
    num_stages: int
    stages: tuple[str, ...]  # names of all stages, in order
    share: float  # share of requests that get the mode of the rule, 0 to 1
    holdout: float  # share of requests that stay with the control throughout: plain, or its terms
    run: int
    version: int
    since: float  # when the stage began (Unix time), moved on by the time that it was held
    against: Mapping[str, object] | None  # terms of the control; null: it is plain
    weights: str  # versions of the draft heads that the evidence belongs to; empty if the rule uses none
    unit: str  # the unit that is assigned and counted once: request, tenant, key, or the name of a header
    num_canary: int  # units of the stage that finished, by arm
    num_control: int
    verdict: str  # on its rule, in words; empty: none yet
    rests_on: str
    judgement: Judgement | None  # on its stage; of one rollout that ended, the last one
    missing: tuple[str, ...]
    """What the judgement waits for, in words, and which guardrails are not expected to decide in time."""
    events: list[RolloutEvent] | None = None
    """Oldest first; null in the list of all, and where the store is away."""


class Rollouts(Feature):
    """Holds the rollouts of the policy in use. Belongs to one event loop; blocking work runs in threads.

    If a step fails, or a change cannot be stored, requests are served by the last state. A rollback takes effect all
    the same and is stored later.
    """

    name = "rollout"
    period_s = 1.0

    def __init__(
        self,
        store: RolloutStore,
        send: Callable[[Control], None],
        registry: CollectorRegistry,
        *,
        model: str,
        notify: Callable[[RolloutEvent], object] | None = None,
        weights_of: Callable[[str], str] = lambda proposer: "",
        has_head: Callable[[str], bool] = lambda proposer: True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """`notify` is called with every change made here; `weights_of` names the weights of a proposer, and
        `has_head` says whether a draft head is in its slot.

        If the store cannot be read now, rollouts are off, so requests are plain, until it can.
        """
        self._send = send
        self._metrics = RolloutMetrics(registry)
        self._model = model
        self._notify = notify
        self._listeners: list[Callable[[LiveRollout, RolloutEvent], None]] = []
        self._weights_of = weights_of
        self._has_head = has_head
        self._clock = clock or SteadyClock()
        self._live: dict[str, LiveRollout] = {}  # by rule
        self._left: tuple[LiveRollout, ...] = ()
        """The last rollouts whose rules the policy lost: if a rule returns, its rollout continues with its evidence."""
        self._exchange = ReplicaExchange(store, self._clock)
        self._policy_version = ""
        self._units = Units()
        self.verdict_of: Callable[[str], Awaitable[RuleVerdict | None]] = _no_verdict
        """The verdict on a rule; the feature that makes it takes its place here."""
        self._lock = asyncio.Lock()

    def listen(self, listener: Callable[[LiveRollout, RolloutEvent], None]) -> None:
        """Call `listener` with every change made here, once it has taken effect."""
        self._listeners.append(listener)

    def adopt(self, policy: Policy, in_force: Mapping[str, Terms] | None = None) -> None:
        """Roll out the rules of this policy that ask for it, by the terms in force; others stay where they are."""
        self._policy_version = policy.full_version
        known = {live.target.rollout_id: live for live in (*self._left, *self._live.values())}
        self._live = {}
        for rule, target in targets_of(policy, self._model, in_force).items():
            live = known.pop(target.rollout_id, None)
            if live is None:
                stored = self._exchange.states.get(target.rollout_id)
                live = LiveRollout(target, stored or RolloutState(target.rollout_id, self._policy_version))
            live.target = target
            self._follow_heads(live)
            live.take(self._ours(live.state))
            self._follow(live)
            self._live[rule] = live
            self._show(rule, live)
        self._left = tuple(known.values())[-MAX_LEFT:]

    def assign(self, rule: str, key: str, sticky: str | None = None) -> Assignment:
        """Return the assignment of the request with `key`, or of all that share `sticky`; `rule` is rolled out."""
        live = self._live[rule]
        self._follow_heads(live)
        assignment = live.assign(key, sticky)
        self._metrics.requests.labels(rule, assignment.arm, assignment.mode).inc()
        return assignment

    def on_request_end(self, ended: RequestEnded) -> None:
        """Count a request for the rollout that it was part of."""
        assignment = ended.about.assignment
        if assignment is None:
            return
        if not ended.about.is_evidence:
            for live in self._live.values():
                live.leave_out(assignment)
            return
        values = observed(ended)
        if values is not None:
            self.observe(assignment, values)

    def observe(self, assignment: Assignment, values: Mapping[str, float], *, late: bool = False) -> None:
        """Count a finished request, given its values by metric; there are none if it ended before they could be taken.

        `late`: the request is counted already, and these values of it were measured afterwards.
        """
        now = self._clock()
        for live in self._live.values():
            if live.target.rollout_id != assignment.rollout_id:
                continue
            self._follow_heads(live)
            if assignment.unit:
                before = self._units.num_lost
                self._units.add(assignment, values, now, late=late, again_s=_counts_again_s(live))
                self._metrics.lost.inc(self._units.num_lost - before)
            else:
                live.observe(assignment, values, now=now, late=late)

    def take_replay(self, assignment: Assignment, right: bool) -> None:
        """Count whether a request's tokens were right when it was decoded again."""
        self.observe(assignment, {"correctness": float(right)}, late=True)

    async def close(self) -> None:
        """Store the evidence for the next start."""
        with suppress(StoreUnavailable):
            await self._exchange.keep_evidence(self._live.values())

    async def tick(self) -> None:
        """Process the changes of other replicas, then step every rollout."""
        if not self._live and not self._left:
            return
        async with self._lock:
            await _contained("rollouts_not_read", self._refresh())
            await _contained("units_not_counted", self._count_units())
            for rule, live in list(self._live.items()):
                await _contained("rollout_not_stepped", self._step(rule, live))

    async def command(
        self, rollout_id: str, what: Command, reason: str, *, by: str = "", force: bool = False
    ) -> RolloutView:
        """Carry out an operator's command; raises `RolloutNotFound`, and `RolloutConflict` if the state excludes it.

        `by`: the operator, as the audit log names them. A stage that has not passed is promoted by force only.
        """
        async with self._lock:
            await _contained("rollouts_not_read", self._refresh())
            live = self._find(rollout_id)
            now = self._clock()
            try:
                transition = _by_hand(live, live.state, what, now, reason, by=by)
                if what == "promote" and not force:
                    await asyncio.to_thread(check, live.state, live.all_evidence(now), live.settings)
            except InvalidParameter as error:
                raise RolloutConflict(str(error), param=error.param) from None
            if not await self._change(live, transition):
                message = f"rollout {rollout_id} was not changed: another server was first, or it cannot be stored"
                raise RolloutConflict(message)
        with suppress(StoreUnavailable):  # a rollback takes effect without the store
            return await self.history(rollout_id)
        return await self.view(rollout_id)

    async def view(self, rollout_id: str) -> RolloutView:
        """Return one rollout with the present judgement; raises `RolloutNotFound`."""
        live = self._find(rollout_id)
        now = self._clock()
        state, settings, evidence = live.state, live.settings, live.all_evidence(now)
        is_judged = state.phase in JUDGED
        judgement = await asyncio.to_thread(judgement_on, state, evidence, settings) if is_judged else None
        empty = sorted(name for name in live.target.named_heads if not self._has_head(name))
        verdict = await self.verdict_of(live.target.rule)
        swap = "prolepsis heads swap NAME@VERSION --proposer"
        return RolloutView(
            id=state.rollout_id,
            rule=live.target.rule,
            policy_version=state.policy_version,
            phase=state.phase,
            stage=settings.stages[state.stage].name,
            stage_number=state.stage,
            num_stages=len(settings.stages),
            stages=tuple(stage.name for stage in settings.stages),
            share=canary_share(state, settings),
            holdout=settings.holdout,
            run=state.run,
            version=state.version,
            since=state.stage_since,
            against=live.target.against,
            weights=live.weights,
            unit=live.target.unit,
            num_canary=evidence.num_canary,
            num_control=evidence.num_control,
            verdict=verdict.verdict if verdict is not None else "",
            rests_on=verdict.rests_on if verdict is not None else "",
            judgement=judgement,
            missing=(
                *(
                    f"{name} has no draft head, so the arm that names it drafts without: `{swap} {name}`"
                    for name in empty
                ),
                *missing(state, judgement, settings),
                *outlook(state, judgement, settings, now),
                *live.left_out,
            ),
        )

    async def history(self, rollout_id: str) -> RolloutView:
        """Return one rollout with its events; raises `RolloutNotFound` and `StoreUnavailable`."""
        view, events = await self.view(rollout_id), [*await self.events(rollout_id)]
        last = next((event.judgement for event in reversed(events) if event.judgement is not None), None)
        return replace(view, events=events, judgement=view.judgement or last)

    def standings(self) -> Mapping[str, RolloutStanding]:
        """Return what verdicts need of the rollouts, by rule."""
        return {rule: live.standing for rule, live in self._live.items()}

    async def views(self) -> Sequence[RolloutView]:
        return [await self.view(live.target.rollout_id) for live in list(self._live.values())]

    async def events(self, rollout_id: str) -> Sequence[RolloutEvent]:
        """Return the events of a rollout, oldest first; raises `StoreUnavailable`."""
        return await self._exchange.events(rollout_id)

    def state(self, rule: str) -> RolloutState | None:
        """Return the state of the rollout of a rule, None if the rule has none now."""
        live = self._live.get(rule)
        return None if live is None else live.state

    def _find(self, rollout_id: str) -> LiveRollout:
        for live in self._live.values():
            if live.target.rollout_id == rollout_id:
                return live
        known = ", ".join(live.target.rollout_id for live in self._live.values()) or "none"
        message = f"there is no rollout {rollout_id[:96]!r}; the policy in use has: {known}"
        if not self._policy_version:
            message = "this server has no rollouts, as it has no policy: neither `serve --policy` nor a store with one"
        raise RolloutNotFound(message, param="rollout_id")

    async def _refresh(self) -> None:
        """Process what other replicas stored, and store what is due."""
        lives = list(self._live.values())
        await self._exchange.read_states(lives)
        for live in lives:
            self._follow_heads(live)
            self._follow(live)
        await self._exchange.evidence(lives)

    def _follow_heads(self, live: LiveRollout) -> None:
        """Begin a stage's evidence again if a draft head was exchanged that its requests may use."""
        before = live.weights
        if live.draft_with(", ".join(self._weights_of(name) for name in sorted(live.target.heads))) and before:
            log.info("rollout_evidence_begins_again", rollout=live.target.rollout_id, weights=live.weights)

    async def _count_units(self) -> None:
        """Count the units whose time is over, and that no replica has counted in the stage; what fails is tried again.

        Raises `StoreUnavailable`.
        """
        now = self._clock()
        lives = {live.target.rollout_id: live for live in self._live.values()}
        for (rollout_id, run, stage), keys in self._units.due(now).items():
            live = lives.get(rollout_id)
            fresh: frozenset[UnitKey] = frozenset()
            if live is not None and live.evidence.belongs_to(rollout_id, run, stage):
                fresh = await self._exchange.claim(keys, now - _counts_again_s(live), now)
            for key, unit in self._units.take(keys, now):
                if live is not None and key in fresh:
                    live.observe(unit.assignment, unit.means, now=now, late=key.late)

    def _follow(self, live: LiveRollout) -> None:
        newer = self._exchange.newer(live.state)
        if newer is not None:
            self._take(live, newer, ())

    async def _step(self, rule: str, live: LiveRollout) -> None:
        before, now = live.state, self._clock()
        evidence = live.all_evidence(now)

        def stepped() -> tuple[Transition, Outcome]:
            if before.phase == "off" and live.target.starts_itself:
                transition = _by_hand(live, before, "start", now, "by the policy: its gate is automatic")
            else:
                transition = step_with_references(before, evidence, live.histories, now, live.settings)
            return transition, outcome_on(before, evidence, live.settings)

        transition, outcome = await asyncio.to_thread(stepped)
        if transition[0] != before:
            await self._change(live, transition)
            outcome = await asyncio.to_thread(outcome_on, live.state, live.all_evidence(now), live.settings)
        self._show(rule, live)
        live.outcome = outcome

    async def _change(self, live: LiveRollout, transition: Transition) -> bool:
        """Store a change and let it take effect; return whether it did."""
        after, events = transition
        try:
            takes_effect = await self._exchange.swap(after, events)
        except Exception as error:  # contained: a failing store must not keep harm in service
            log.error("rollout_not_stored", rollout=after.rollout_id, phase=after.phase, error=str(error))
            self._metrics.not_kept.inc()
            takes_effect = after.phase == "rolled_back"
            if takes_effect:
                self._exchange.store_later(after.rollout_id, events)
        if takes_effect:
            self._take(live, after, events)
        return takes_effect

    def _take(self, live: LiveRollout, after: RolloutState, events: Sequence[RolloutEvent]) -> None:
        for name in stopped_runs(live.state, after):
            self._send(StopRun(name))
        live.take(self._ours(after))
        for event in events:
            live.is_harmed = event.judgement is not None and event.judgement.outcome == "fail"
            self._metrics.changes.labels(live.target.rule, event.kind).inc()
            if self._notify is not None:
                self._notify(event)
            for listener in self._listeners:
                listener(live, event)
            write = log.warning if event.kind in ("rolled_back", "set_back") else log.info
            write(
                "rollout_changed",
                rollout=event.rollout_id,
                kind=event.kind,
                stage=event.stage,
                reason=event.reason,
                by=event.by or SERVER,
                policy=event.policy_version,
                guardrails=[
                    {
                        "guardrail": result.name,
                        "outcome": result.outcome,
                        "estimate": round(result.estimate, 4),
                        "allowed": round(result.allowed, 4),
                        "canary": result.num_canary,
                        "control": result.num_control,
                    }
                    for result in (event.judgement.guardrails if event.judgement else ())
                ],
            )

    def _ours(self, state: RolloutState) -> RolloutState:
        """Return the state under the policy in use, with no time in the future: the clock may have been set back."""
        now = self._clock()
        held_at = None if state.held_at is None else min(state.held_at, now)
        since = min(state.stage_since, now)
        return replace(state, policy_version=self._policy_version, stage_since=since, held_at=held_at)

    def _show(self, rule: str, live: LiveRollout) -> None:
        state = live.state
        stage = len(live.settings.stages) if state.phase == "on" else state.stage
        self._metrics.show(rule, state.phase, stage, canary_share(state, live.settings))


def _counts_again_s(live: LiveRollout) -> float:
    """Return after how many seconds a unit counts again: in a stage never, in the moving window once a window."""
    return MINUTE_S * WINDOW_MINUTES if live.state.phase == "on" else math.inf


def _by_hand(
    live: LiveRollout, before: RolloutState, what: Command, now: float, reason: str, *, by: str = ""
) -> Transition:
    after, events = command(before, what, now, live.settings, reason, by=by)
    return referenced(before, after, live.histories, live.settings), events


async def _no_verdict(rule: str) -> None:
    """Return no verdict, where no feature makes any."""


async def _contained(event: str, work: Awaitable[None]) -> None:
    """Await a part of the control loop; if it fails, the last states stay."""
    try:
        await work
    except Exception as error:  # contained: a failure of control must not affect requests
        log.error(event, error=f"{type(error).__name__}: {error}")


def audit_event(event: RolloutEvent) -> AuditEvent:
    """Return the audit log's event of a change, with the numbers that decided it."""
    return AuditEvent(
        actor=event.by or SERVER,
        action=f"rollout.{event.kind}",
        subject=event.rollout_id,
        after=json.loads(event.to_json()),
        versions={"policy": event.policy_version},
    )
