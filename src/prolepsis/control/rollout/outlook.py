"""Says of a stage whether its guardrails can still pass or fail in the time that it has."""

import math
from collections.abc import Sequence

from prolepsis.control.rollout.machine import RolloutState, guardrails_of
from prolepsis.control.rollout.settings import RolloutSettings
from prolepsis.control.statistics.guardrail import Guardrail, GuardrailResult
from prolepsis.control.statistics.judge import Verdict
from prolepsis.control.statistics.means import NUM_STAKES
from prolepsis.core.units import duration

_AFTER: dict[str, str] = {"hold": "the rollout is held", "rollback": "the rollout is rolled back"}
_MIXED = math.log(NUM_STAKES)  # what evidence lacks at first, as stakes are mixed


def outlook(state: RolloutState, verdict: Verdict | None, settings: RolloutSettings, now: float) -> list[str]:
    """Return, in words, which guardrails are not expected to decide before the longest time of a stage that runs.

    Evidence grows with requests as it did so far. `now` is Unix time in seconds.
    """
    if state.phase != "running" or verdict is None or verdict.outcome == "pass":
        return []
    stage, lasted = settings.stages[state.stage], now - state.stage_since
    results = {result.name: result for result in verdict.guardrails if result.outcome == "inconclusive"}
    guardrails = [g for g in guardrails_of(state, settings) if not g.dry_run and g.name in results]
    left, found = stage.maximum_s - lasted, []
    for guardrail in guardrails:
        takes = _takes_s(guardrail, results[guardrail.name], guardrails, settings, lasted)
        if takes > left:
            expected = (
                "no verdict is in sight" if math.isinf(takes) else f"a verdict takes about {duration(takes)} more"
            )
            found.append(
                f"{guardrail.name} can neither pass nor fail in the {duration(max(0.0, left))} left, after which "
                f"{_AFTER[settings.on_inconclusive]}: {expected} with requests like these"
            )
    return found


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
