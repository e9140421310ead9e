"""Says of a stage what it lacks to be promoted, and whether its guardrails can still decide in the time that it has."""

import math
from collections.abc import Mapping, Sequence

from prolepsis.control.rollout.machine import RolloutState, guardrails_of, judgement_on
from prolepsis.control.rollout.settings import RolloutSettings
from prolepsis.control.statistics.guardrail import Guardrail, GuardrailResult
from prolepsis.control.statistics.judge import Evidence, Judgement, Reason
from prolepsis.control.statistics.means import NUM_STAKES
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.units import duration, figure

_AFTER: dict[str, str] = {"hold": "the rollout is held", "rollback": "the rollout is rolled back"}
_MIXED = math.log(NUM_STAKES)  # what evidence lacks at first, as stakes are mixed
_UNFIT: Mapping[Reason, str] = {
    "uneven_arms": "the arms do not have the stated shares",
    "measurement_errors": "measuring failed",
}


def check(state: RolloutState, evidence: Evidence, settings: RolloutSettings) -> None:
    """Raise `InvalidParameter` with what is missing if the stage has not passed; one that waits at a gate has."""
    judgement = judgement_on(state, evidence, settings) if state.phase != "gate" else None
    if state.phase == "gate" or (judgement is not None and judgement.outcome == "pass"):
        return
    why = "; ".join(missing(state, judgement, settings)) or "no guardrail decides"
    stage = settings.stages[state.stage].name
    raise InvalidParameter(f"stage {stage!r} has not passed: {why}. `force` promotes it anyway", param="force")


def missing(state: RolloutState, judgement: Judgement | None, settings: RolloutSettings) -> list[str]:
    """Return in words what the judgement on a stage waits for."""
    if judgement is None or judgement.outcome == "pass":
        return []
    results = {result.name: result for result in judgement.guardrails}
    guardrails = [g for g in guardrails_of(state, settings) if not g.dry_run and g.name in results]
    reasons = [_missing(g, results[g.name]) for g in guardrails if results[g.name].outcome != "pass"]
    return [*reasons, *([_UNFIT[judgement.reason]] if judgement.reason in _UNFIT else [])]


def _missing(guardrail: Guardrail, result: GuardrailResult) -> str:
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


def outlook(state: RolloutState, judgement: Judgement | None, settings: RolloutSettings, now: float) -> list[str]:
    """Return, in words, which guardrails are not expected to decide before the longest time of a stage that runs.

    Evidence grows with requests as it did so far. `now` is Unix time in seconds.
    """
    if state.phase != "running" or judgement is None or judgement.outcome == "pass":
        return []
    stage, lasted = settings.stages[state.stage], now - state.stage_since
    results = {result.name: result for result in judgement.guardrails if result.outcome == "inconclusive"}
    guardrails = [g for g in guardrails_of(state, settings) if not g.dry_run and g.name in results]
    left, outlooks = stage.maximum_s - lasted, []
    for guardrail in guardrails:
        takes = _takes_s(guardrail, results[guardrail.name], guardrails, settings, lasted)
        if takes > left:
            expected = (
                "no judgement is in sight" if math.isinf(takes) else f"a judgement takes about {duration(takes)} more"
            )
            outlooks.append(
                f"{guardrail.name} can neither pass nor fail in the {duration(max(0.0, left))} left, after which "
                f"{_AFTER[settings.on_inconclusive]}: {expected} with requests like these"
            )
    return outlooks


def _takes_s(
    guardrail: Guardrail,
    result: GuardrailResult,
    guardrails: Sequence[Guardrail],
    settings: RolloutSettings,
    lasted: float,
) -> float:
    """Return after how many more seconds evidence of harm or safety decides; 0 while too little is known to say."""
    counted = [result.num_canary, *([result.num_control] if guardrail.measure.has_control else [])]
    if min(counted) < guardrail.minimum_samples or not guardrail.measure.ready:
        return 0.0
    levels = settings.levels
    needed = {result.harm_evidence: levels.fail_alpha(guardrails), result.safety_evidence: levels.pass_alpha}
    times = [
        lasted * ((_MIXED - math.log(alpha)) / (evidence + _MIXED) - 1.0)
        for evidence, alpha in needed.items()
        if evidence + _MIXED > 0.0
    ]
    return max(0.0, min(times, default=math.inf))
