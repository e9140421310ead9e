"""A rollout as a state machine: its state, events, the pure function that steps it, and the operator's commands."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self, TypeVar

from prolepsis.control.rollout.settings import RolloutSettings, Stage
from prolepsis.control.statistics.guardrail import Guardrail, Outcome
from prolepsis.control.statistics.judge import Evidence, Judgement, Levels, judge, outcome_of
from prolepsis.control.statistics.window import NUM_STARTS
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.json_value import JsonValue

Phase = Literal["off", "running", "gate", "held", "on", "rolled_back"]
ACTIVE: tuple[Phase, ...] = ("running", "gate", "held")  # phases in which requests go to the canary of a stage
JUDGED: tuple[Phase, ...] = (*ACTIVE, "on")  # phases in which harm takes the rollout back


@dataclass(frozen=True, slots=True)
class RolloutState(JsonValue):
    """A value that is stored and shared by replicas. Times are in seconds, of one clock that all replicas share."""

    rollout_id: str
    policy_version: str  # version of the policy at the last change
    version: int = 0  # rises by one with each change; the store takes a state only over the one before it
    run: int = 0  # number of starts so far
    phase: Phase = "off"
    stage: int = 0
    stage_since: float = 0.0  # when the stage began, moved on by the time that an operator held it
    held_at: float | None = None  # since when an operator holds it; None if it is held because no judgement came
    resumes_to: Phase = "running"
    references: Mapping[str, float] = field(default_factory=dict)
    """Values of the control before the stage, by guardrail: all replicas test against the same number."""

    def has_ended(self, before: Self) -> bool:
        """Return whether evidence from the time of the state `before` can no longer decide anything."""
        places = [(state.run, state.stage, state.phase == "on") for state in (before, self)]
        return self.phase not in JUDGED or places[0] < places[1]

    def changed(self, phase: Phase) -> Self:
        """Return the next version, in `phase`."""
        return replace(self, phase=phase, version=self.version + 1)

    def at_stage(self, stage: int, now: float, *, run: int | None = None) -> Self:
        """Return the state at the beginning of a stage, in the same version."""
        run = self.run if run is None else run
        return replace(self, run=run, stage=stage, stage_since=now, held_at=None, references={})


def evidence_stage(state: RolloutState, settings: RolloutSettings) -> int:
    """Return the number of the stage that evidence belongs to; on is the one after the last."""
    return len(settings.stages) if state.phase == "on" else state.stage


def guardrails_of(state: RolloutState, settings: RolloutSettings) -> tuple[Guardrail, ...]:
    """Return the guardrails of the current stage with their references; on without a holdout, only limits."""
    references, everything = state.references, state.phase == "on" and settings.holdout == 0.0
    return tuple(
        guardrail.referring_to(references[guardrail.name]) if guardrail.name in references else guardrail
        for guardrail in settings.stages[state.stage].guardrails
        if not (everything and guardrail.measure.has_control)
    )


def canary_share(state: RolloutState, settings: RolloutSettings) -> float:
    """Return the share of requests that get the rule's mode; 0 in shadow."""
    if state.phase == "on":
        return 1.0 - settings.holdout
    stage = settings.stages[state.stage]
    return stage.share if state.phase in ACTIVE and stage.kind == "canary" else 0.0


Kind = Literal[
    "started",
    "promoted",  # to the next stage
    "gate_reached",  # passed, and waits for an operator's approval
    "completed",
    "rolled_back",
    "set_back",  # from on to the last stage, for harm
    "held",  # by an operator, or because no judgement came in time or is possible: waits for an operator
    "resumed",
]


@dataclass(frozen=True, slots=True)
class RolloutEvent(JsonValue):
    at: float
    rollout_id: str
    policy_version: str
    version: int  # version of the state that the event led to
    kind: Kind
    stage: str  # name of the stage that it happened in
    reason: str
    judgement: Judgement | None = None  # with the numbers that decided; None for an operator's command
    by: str = ""
    """The operator whose command it was, as the audit log names them; empty: the server acted by itself."""


Transition = tuple[RolloutState, tuple[RolloutEvent, ...]]
"""The state after a step with its events; the same state and no event if nothing changed."""


def change(
    kind: Kind,
    before: RolloutState,
    after: RolloutState,
    *,
    stage: str,
    now: float,
    reason: str,
    judgement: Judgement | None = None,
) -> Transition:
    """Return `after` with the event of the change, which happened in the stage of `before`."""
    event = RolloutEvent(now, before.rollout_id, before.policy_version, after.version, kind, stage, reason, judgement)
    return after, (event,)


Result = TypeVar("Result")
_UNFIT = ("measurement_errors", "uneven_arms")  # reasons that no further evidence will change
_WATCH_LEVELS = Levels(num_starts=NUM_STARTS)
"""Of the moving window once the rollout is on: they hold for each 30 days."""


def step(state: RolloutState, evidence: Evidence | None, now: float, settings: RolloutSettings) -> Transition:
    """Return the state at `now` (seconds) and what happened.

    A fail rolls back at once, from every active phase, held included; from on it may lead back to the last stage. A
    pass promotes, or waits at a gate, once the stage has lasted its least time. An inconclusive stage lasts up to its
    longest time. Evidence of another rollout or stage does not count. Without a change the state is returned as it is.
    """
    if state.phase not in JUDGED or not _is_due(state, evidence, now, settings):
        return state, ()
    stage = settings.stages[state.stage]
    judgement = judgement_on(state, evidence, settings)
    if judgement is not None and judgement.outcome == "fail":
        if state.phase == "on" and settings.on_harm == "last_stage":
            reason = ", ".join(judgement.failed)  # as another run: drafting stops in flight, and evidence begins again
            after = state.changed("running").at_stage(state.stage, now, run=state.run + 1)
            return change("set_back", state, after, stage=stage.name, now=now, reason=reason, judgement=judgement)
        return _roll_back(state, stage, now, ", ".join(judgement.failed), judgement)
    return _run(state, judgement, now, settings) if state.phase == "running" else (state, ())


def promote(
    state: RolloutState, now: float, settings: RolloutSettings, reason: str, judgement: Judgement | None = None
) -> Transition:
    """Return the state one stage on; after the last stage, on for all but the holdout."""
    name = settings.stages[state.stage].name
    if state.stage + 1 == len(settings.stages):
        after = replace(state.changed("on"), stage_since=now, held_at=None)
        return change("completed", state, after, stage=name, now=now, reason=reason, judgement=judgement)
    after = state.changed("running").at_stage(state.stage + 1, now)
    return change("promoted", state, after, stage=name, now=now, reason=reason, judgement=judgement)


def judgement_on(state: RolloutState, evidence: Evidence | None, settings: RolloutSettings) -> Judgement | None:
    """Return the judgement on the stage with its numbers; None for evidence of another stage."""
    return _judged(judge, state, evidence, settings)


def outcome_on(state: RolloutState, evidence: Evidence, settings: RolloutSettings) -> Outcome:
    """Return the outcome of the stage without numbers, which take ten times as long."""
    result = _judged(outcome_of, state, evidence, settings) if state.phase in JUDGED else None
    return result[0] if result else "inconclusive"


def _judged(
    judge_by: Callable[..., Result], state: RolloutState, evidence: Evidence | None, settings: RolloutSettings
) -> Result | None:
    if evidence is None or not evidence.belongs_to(state.rollout_id, state.run, evidence_stage(state, settings)):
        return None
    is_on, stage = state.phase == "on", settings.stages[state.stage]
    share = canary_share(state, settings) if is_on else 1.0 if stage.kind == "shadow" else stage.share
    return judge_by(
        guardrails_of(state, settings),
        evidence,
        share=share,
        levels=_WATCH_LEVELS if is_on else settings.levels,
    )


def _is_due(state: RolloutState, evidence: Evidence | None, now: float, settings: RolloutSettings) -> bool:
    """Return whether something changes now: most steps end here, without the slow bounds."""
    outcome, reason = _judged(outcome_of, state, evidence, settings) or ("inconclusive", "not_enough_evidence")
    if outcome == "fail":
        return True
    stage, lasted = settings.stages[state.stage], now - state.stage_since
    passed = outcome == "pass" and lasted >= stage.minimum_s
    unfit = reason in _UNFIT
    return state.phase == "running" and (passed or unfit or lasted >= stage.maximum_s)


def _run(state: RolloutState, judgement: Judgement | None, now: float, settings: RolloutSettings) -> Transition:
    stage = settings.stages[state.stage]
    lasted = now - state.stage_since
    if judgement is not None and judgement.outcome == "pass" and lasted >= stage.minimum_s:
        reason = judgement.reason
        if not stage.manual_gate:
            return promote(state, now, settings, reason, judgement)
        gate = state.changed("gate")
        return change("gate_reached", state, gate, stage=stage.name, now=now, reason=reason, judgement=judgement)
    if judgement is not None and judgement.reason in _UNFIT:
        return _hold(state, stage, now, judgement.reason, judgement)
    if lasted < stage.maximum_s:
        return state, ()
    end = _roll_back if settings.on_inconclusive == "rollback" else _hold
    return end(state, stage, now, "no judgement in time", judgement)


def _roll_back(state: RolloutState, stage: Stage, now: float, reason: str, judgement: Judgement | None) -> Transition:
    after = state.changed("rolled_back")
    return change("rolled_back", state, after, stage=stage.name, now=now, reason=reason, judgement=judgement)


def _hold(state: RolloutState, stage: Stage, now: float, reason: str, judgement: Judgement | None) -> Transition:
    return change("held", state, state.changed("held"), stage=stage.name, now=now, reason=reason, judgement=judgement)


Command = Literal["start", "hold", "resume", "promote", "rollback"]
ALLOWED: dict[Command, tuple[Phase, ...]] = {
    "start": ("off", "rolled_back"),
    "hold": ("running", "gate"),
    "resume": ("held",),
    "promote": ACTIVE,
    "rollback": (*ACTIVE, "on"),
}
"""The phases in which a command may be given."""


def command(
    state: RolloutState, what: Command, now: float, settings: RolloutSettings, reason: str, *, by: str = ""
) -> Transition:
    """Return the state after a command at `now` (seconds), with its event; `reason` names the operator and the cause.

    `by`: the operator, as the audit log names them; empty: the server itself.

    Holding stops the stage's clock and all promotion; the canary keeps its share, and harm still rolls back. If a stage
    was held because no judgement came, resuming grants it its longest time again. Promoting asks for no judgement here
    (`promotion.check`). Starting a rollout that was rolled back begins a new run. Raises `InvalidParameter` if the
    state's phase excludes the command.
    """
    if state.phase not in ALLOWED[what]:
        allowed = ", ".join(ALLOWED[what])
        raise InvalidParameter(
            f"{what!r} is for rollouts that are {allowed}; this one is {state.phase}", param="command"
        )
    if what == "promote":
        after, events = promote(state, now, settings, reason)
    else:
        kind: Kind
        if what == "start":
            kind, after = "started", state.changed("running").at_stage(0, now, run=state.run + 1)
        elif what == "hold":
            kind, after = "held", replace(state.changed("held"), held_at=now, resumes_to=state.phase)
        elif what == "rollback":
            kind, after = "rolled_back", state.changed("rolled_back")
        elif state.held_at is None:
            kind, after = "resumed", replace(state.changed("running"), stage_since=now)
        else:
            moved = state.stage_since + now - state.held_at
            kind, after = "resumed", replace(state.changed(state.resumes_to), stage_since=moved, held_at=None)
        after, events = change(kind, state, after, stage=settings.stages[after.stage].name, now=now, reason=reason)
    return after, tuple(replace(event, by=by) for event in events)
