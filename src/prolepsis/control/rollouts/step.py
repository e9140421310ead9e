"""A rollout as a pure function: state and evidence in, state and events out."""

from dataclasses import replace

from prolepsis.control.rollouts.events import Stepped, change
from prolepsis.control.rollouts.settings import RolloutSettings, Stage
from prolepsis.control.rollouts.state import ACTIVE, RolloutState
from prolepsis.control.verdicts.evidence import StageEvidence
from prolepsis.control.verdicts.judge import Verdict, judge


def step(state: RolloutState, evidence: StageEvidence | None, now: float, settings: RolloutSettings) -> Stepped:
    """Return the state at `now` (seconds) and what happened.

    A fail rolls back at once, from every active phase, paused too. A pass promotes, or waits at a gate, once the stage
    has lasted its least time. What is inconclusive waits up to the stage's longest time. Evidence of another rollout or
    stage says nothing. Without a change the state is returned as it is.
    """
    if state.phase not in ACTIVE:
        return state, ()
    stage = settings.stages[state.stage]
    verdict = _verdict(state, evidence, stage, settings)
    if verdict is not None and verdict.outcome == "fail":
        return _roll_back(state, stage, now, ", ".join(verdict.failed), verdict)
    return _run(state, verdict, now, settings) if state.phase == "running" else (state, ())


def promote(
    state: RolloutState, now: float, settings: RolloutSettings, reason: str, verdict: Verdict | None = None
) -> Stepped:
    """Return the state one stage on, or on for all but the standing control after the last."""
    name = settings.stages[state.stage].name
    if state.stage + 1 == len(settings.stages):
        after = replace(state.changed("on"), stage_since=now)
        return change("completed", state, after, stage=name, now=now, reason=reason, verdict=verdict)
    after = replace(state.changed("running"), stage=state.stage + 1, stage_since=now)
    return change("promoted", state, after, stage=name, now=now, reason=reason, verdict=verdict)


def _verdict(
    state: RolloutState, evidence: StageEvidence | None, stage: Stage, settings: RolloutSettings
) -> Verdict | None:
    if evidence is None or (evidence.rollout_id, evidence.stage) != (state.rollout_id, state.stage):
        return None
    return judge(
        stage.guardrails,
        evidence,
        share=1.0 if stage.kind == "shadow" else stage.share,
        levels=settings.levels,
        consecutive_error_limit=settings.consecutive_error_limit,
    )


def _run(state: RolloutState, verdict: Verdict | None, now: float, settings: RolloutSettings) -> Stepped:
    stage = settings.stages[state.stage]
    lasted = now - state.stage_since
    if verdict is not None and verdict.outcome == "pass" and lasted >= stage.minimum_s:
        return _pass(state, verdict, now, settings)
    if verdict is not None and verdict.reason in ("measurement_errors", "uneven_arms"):
        return _hold(state, stage, now, verdict.reason, verdict)
    if lasted < stage.maximum_s:
        return state, ()
    end = _roll_back if settings.on_inconclusive == "roll_back" else _hold
    return end(state, stage, now, "no verdict in time", verdict)


def _pass(state: RolloutState, verdict: Verdict, now: float, settings: RolloutSettings) -> Stepped:
    stage = settings.stages[state.stage]
    if not stage.manual_gate:
        return promote(state, now, settings, verdict.reason, verdict)
    after = state.changed("gate")
    return change("gate_reached", state, after, stage=stage.name, now=now, reason=verdict.reason, verdict=verdict)


def _roll_back(state: RolloutState, stage: Stage, now: float, reason: str, verdict: Verdict | None) -> Stepped:
    after = state.changed("rolled_back")
    return change("rolled_back", state, after, stage=stage.name, now=now, reason=reason, verdict=verdict)


def _hold(state: RolloutState, stage: Stage, now: float, reason: str, verdict: Verdict | None) -> Stepped:
    return change("held", state, state.changed("held"), stage=stage.name, now=now, reason=reason, verdict=verdict)
