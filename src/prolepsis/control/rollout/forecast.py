"""Forecasts how long a rollout will take, before it starts, under stated assumptions."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

from prolepsis.control.policy.rollout_terms import Value
from prolepsis.control.rollout.settings import RolloutSettings, Stage
from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.means import HEADROOM, RATIO_HEADROOM, Limit, MeanDifference, Ratio, sign_of
from prolepsis.control.statistics.planning import AssumedScores, Wait, expected_time_to_pass
from prolepsis.control.statistics.quantiles import QuantileLimit, QuantileRatio

_REPLAYED: Value = "correctness"
SPREAD = 0.45  # assumed standard deviation of the logarithm of times
ASSUMED = (
    "a canary that is no different, or gains twice what is asked; rates half as far from zero (or one) as their limit "
    f"allows; times and costs lognormal with deviation {SPREAD}, a limit on them at twice what is served; twice the "
    "tokens a pass beyond the first that the limit asks for"
)


@dataclass(frozen=True, slots=True)
class Forecast:
    stage: str
    wait: Wait | None  # None: no guardrail in it decides, so only an operator can promote it
    longest_s: float  # after that it is held or rolled back


def forecast(settings: RolloutSettings, requests_per_s: float, replay_sample: float = 1.0) -> tuple[Forecast, ...]:
    """Return the time to pass of each stage at this rate of requests a second that match the rule; see `ASSUMED`.

    The least time of a stage is counted in; a gate's wait for a person is not. `replay_sample`: the share of requests
    that is decoded again, which is all that guardrails on correctness see.
    """
    rates: dict[str, float] = {_REPLAYED: requests_per_s * replay_sample}
    return tuple(
        Forecast(stage.name, _wait(stage, settings, requests_per_s, rates), stage.maximum_s)
        for stage in settings.stages
    )


def _wait(stage: Stage, settings: RolloutSettings, requests_per_s: float, rates: Mapping[str, float]) -> Wait | None:
    decisive = [guardrail for guardrail in stage.guardrails if not guardrail.dry_run]
    if not decisive:
        return None
    waits = [
        expected_time_to_pass(_expected(guardrail), share=stage.share, requests_per_s=rate, levels=settings.levels)
        if (rate := rates.get(guardrail.metric, requests_per_s))
        else Wait(math.inf, math.inf)
        for guardrail in decisive
    ]
    return Wait(
        max(stage.minimum_s, *(wait.least_s for wait in waits)), max(stage.minimum_s, *(wait.most_s for wait in waits))
    )


def _expected(guardrail: Guardrail) -> AssumedScores:
    control, canary, deviation = _scores(guardrail)
    known = guardrail.measure
    if isinstance(known, MeanDifference):
        guardrail = guardrail.referring_to(control)
    if isinstance(known, Ratio):
        guardrail = guardrail.referring_to(1.0)
    return AssumedScores(guardrail=guardrail, control_mean=control, canary_mean=canary, deviation=deviation)


def _scores(guardrail: Guardrail) -> tuple[float, float, float]:
    """Return the assumed means of control and canary and the deviation, on the scale of scores."""
    measure = guardrail.measure
    if isinstance(measure, QuantileRatio):
        slow = _beyond(measure.level, 1.0 + measure.margin)
        return 1.0 - measure.level, slow, 0.5
    if isinstance(measure, QuantileLimit):
        return 0.0, _beyond(measure.level, 2.0), 0.5
    if isinstance(measure, Ratio):
        gained = 1.0 + sign_of(guardrail.better) * 2.0 * min(0.0, measure.margin)
        return 1.0 / RATIO_HEADROOM, gained / RATIO_HEADROOM, SPREAD / RATIO_HEADROOM
    amounts = {"device_ms_per_token": 0.5, "acceptance_length": 2.0}  # times the limit
    if isinstance(measure, Limit) and guardrail.metric in amounts:
        times = amounts[guardrail.metric]
        return times / HEADROOM, times / HEADROOM, times * SPREAD / HEADROOM
    if isinstance(measure, Limit):
        good = measure.limit / 2.0 if guardrail.better == "lower" else (1.0 + measure.limit) / 2.0
        return good, good, 0.2 if guardrail.metric == "acceptance" else 0.5
    assert isinstance(measure, MeanDifference), "policies have no other measures"
    rate = measure.margin / 2.0 if guardrail.better == "lower" else 1.0 - measure.margin / 2.0
    return rate, rate, 0.5


def _beyond(level: float, factor: float) -> float:
    """Return the share of times above `factor` times their quantile at `level`."""
    normal = NormalDist()
    return 1.0 - normal.cdf(normal.inv_cdf(level) + math.log(factor) / SPREAD)
