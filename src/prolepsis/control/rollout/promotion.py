"""Checks whether a stage may be promoted without force, and says what it lacks."""

from collections.abc import Mapping

from prolepsis.control.rollout.machine import RolloutState, guardrails_of, verdict_on
from prolepsis.control.rollout.settings import RolloutSettings
from prolepsis.control.statistics.guardrail import Guardrail, GuardrailResult
from prolepsis.control.statistics.judge import Evidence, Reason, Verdict
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.units import figure

_UNFIT: Mapping[Reason, str] = {
    "uneven_arms": "the arms do not have the stated shares",
    "measurement_errors": "measuring failed",
}


def check(state: RolloutState, evidence: Evidence, settings: RolloutSettings) -> None:
    """Raise `InvalidParameter` with what is missing if the stage has not passed; one that waits at a gate has."""
    verdict = verdict_on(state, evidence, settings) if state.phase != "gate" else None
    if state.phase == "gate" or (verdict is not None and verdict.outcome == "pass"):
        return
    why = "; ".join(missing(state, verdict, settings)) or "no guardrail decides"
    stage = settings.stages[state.stage].name
    raise InvalidParameter(f"stage {stage!r} has not passed: {why}. `force` promotes it anyway", param="force")


def missing(state: RolloutState, verdict: Verdict | None, settings: RolloutSettings) -> list[str]:
    """Return in words what the verdict on a stage waits for."""
    if verdict is None or verdict.outcome == "pass":
        return []
    results = {result.name: result for result in verdict.guardrails}
    guardrails = [g for g in guardrails_of(state, settings) if not g.dry_run and g.name in results]
    found = [_missing(g, results[g.name]) for g in guardrails if results[g.name].outcome != "pass"]
    return [*found, *([_UNFIT[verdict.reason]] if verdict.reason in _UNFIT else [])]


def _missing(guardrail: Guardrail, result: GuardrailResult) -> str:
    """Return what a guardrail waits for, in words."""
    counts = {"canary": result.num_canary}
    if guardrail.measure.has_control:
        counts["control"] = result.num_control
    least = guardrail.minimum_samples
    few = [f"{n} of {least} requests of the {arm}" for arm, n in counts.items() if n < least]
    if few:
        return f"{guardrail.name} has {' and '.join(few)}"
    if not guardrail.measure.ready:
        return f"{guardrail.name} waits for earlier figures of the control"
    state = "shows harm" if result.outcome == "fail" else "is not shown to be within its bound"
    return f"{guardrail.name} {state}: {figure(result.estimate, 4)} seen, {figure(result.allowed, 4)} allowed"
