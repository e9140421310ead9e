"""A rollout as a pure function: state and evidence in, state and events out."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from prolepsis.control.rollouts.events import Stepped, change
from prolepsis.control.rollouts.settings import RolloutSettings, Stage
from prolepsis.control.rollouts.state import ACTIVE, RolloutState, guardrails_of
from prolepsis.control.verdicts.evidence import StageEvidence
from prolepsis.control.verdicts.guardrail import Outcome
from prolepsis.control.verdicts.judge import Verdict, judge, outcome_of

Answer = TypeVar("Answer")
_UNFIT = ("measurement_errors", "uneven_arms")
"""Why a verdict is withheld for good, whatever else comes."""


def step(state: RolloutState, evidence: StageEvidence | None, now: float, settings: RolloutSettings) -> Stepped:
    """Return the state at `now` (seconds) and what happened.

    A fail rolls back at once, from every active phase, held too. A pass promotes, or waits at a gate, once the stage
    has lasted its least time. What is inconclusive waits up to the stage's longest time. Evidence of another rollout or
    stage says nothing. Without a change the state is returned as it is.
    """
    if state.phase not in ACTIVE:
        return state, ()
    stage = settings.stages[state.stage]
    if not _is_due(state, evidence, now, settings):
        return state, ()
    verdict = verdict_on(state, evidence, settings)
    if verdict is not None and verdict.outcome == "fail":
        return _roll_back(state, stage, now, ", ".join(verdict.failed), verdict)
    return _run(state, verdict, now, settings) if state.phase == "running" else (state, ())


def promote(
    state: RolloutState, now: float, settings: RolloutSettings, reason: str, verdict: Verdict | None = None
) -> Stepped:
    """Return the state one stage on, or on for all but the standing control after the last."""
    name = settings.stages[state.stage].name
    if state.stage + 1 == len(settings.stages):
        after = replace(state.changed("on"), stage_since=now, held_at=None)
        return change("completed", state, after, stage=name, now=now, reason=reason, verdict=verdict)
    after = state.changed("running").at_stage(state.stage + 1, now)
    return change("promoted", state, after, stage=name, now=now, reason=reason, verdict=verdict)


def verdict_on(state: RolloutState, evidence: StageEvidence | None, settings: RolloutSettings) -> Verdict | None:
    """Return what the evidence says of the stage, with its numbers; None where it is of another one."""
    return _ask(judge, state, evidence, settings)


def outcome_on(state: RolloutState, evidence: StageEvidence, settings: RolloutSettings) -> Outcome:
    """Return what the evidence says of the stage, without numbers, which take ten times as long."""
    answer = _ask(outcome_of, state, evidence, settings) if state.phase in ACTIVE else None
    return answer[0] if answer else "inconclusive"


def _ask(
    judging: Callable[..., Answer], state: RolloutState, evidence: StageEvidence | None, settings: RolloutSettings
) -> Answer | None:
    if evidence is None or not evidence.belongs_to(state.rollout_id, state.run, state.stage):
        return None
    stage = settings.stages[state.stage]
    return judging(
        guardrails_of(state, settings),
        evidence,
        share=1.0 if stage.kind == "shadow" else stage.share,
        levels=settings.levels,
        consecutive_error_limit=settings.consecutive_error_limit,
    )


def _is_due(state: RolloutState, evidence: StageEvidence | None, now: float, settings: RolloutSettings) -> bool:
    """Return whether something changes now: most looks end here, without bounds, which take their time."""
    asked = _ask(outcome_of, state, evidence, settings)
    outcome, reason = asked or ("inconclusive", "not_enough_evidence")
    if outcome == "fail":
        return True
    stage, lasted = settings.stages[state.stage], now - state.stage_since
    passed = outcome == "pass" and lasted >= stage.minimum_s
    unfit = reason in _UNFIT
    return state.phase == "running" and (passed or unfit or lasted >= stage.maximum_s)


def _run(state: RolloutState, verdict: Verdict | None, now: float, settings: RolloutSettings) -> Stepped:
    stage = settings.stages[state.stage]
    lasted = now - state.stage_since
    if verdict is not None and verdict.outcome == "pass" and lasted >= stage.minimum_s:
        return _pass(state, verdict, now, settings)
    if verdict is not None and verdict.reason in _UNFIT:
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
