"""Forecasts of the time until a judgement."""

import math
from dataclasses import dataclass

from prolepsis.control.statistics.guardrail import Guardrail
from prolepsis.control.statistics.judge import Levels
from prolepsis.control.statistics.means import NUM_STAKES, Contrast, sign_of

_SPREAD = 1.2816  # standard deviations from the middle to the tenth and the ninetieth of a hundred


@dataclass(frozen=True, slots=True, kw_only=True)
class AssumedScores:
    """Assumed scores of a metric, on the scale of scores in [0, 1] (see `Measure.score`)."""

    guardrail: Guardrail
    control_mean: float
    canary_mean: float
    deviation: float  # standard deviation of a request's score within an arm


@dataclass(frozen=True, slots=True)
class Wait:
    """Seconds until a judgement: the range of four of five rollouts; infinite if no judgement is expected."""

    least_s: float
    most_s: float


def expected_time_to_pass(e: AssumedScores, *, share: float, requests_per_s: float, levels: Levels) -> Wait:
    """Return the time until a guardrail passes if the canary is as assumed.

    It is the passage time of log wealth over log(1 / alpha), as of a random walk with the best stake's drift. Its mean
    is b / g and its variance b v / g^3 (inverse Gaussian: Wald 1947, appendix A.5), with b = log(number of stakes /
    alpha), g and v mean and variance of a request's log factor.
    """
    sign = -sign_of(e.guardrail.better)
    contrast = e.guardrail.measure.contrast(e.guardrail.better, share)
    growth, variance = max((_log_factor(e, contrast, stake) for stake in contrast.stakes(sign)), key=lambda gv: gv[0])
    if growth <= 0.0:
        return Wait(math.inf, math.inf)
    barrier = math.log(NUM_STAKES / levels.promotion)
    mean, deviation = barrier / growth, math.sqrt(barrier * variance / growth**3)
    one_arm = contrast.ratio == 0.0
    floor = e.guardrail.minimum_samples / (1.0 if one_arm else min(share, 1.0 - share))
    counted_per_s = requests_per_s * (share if one_arm else 1.0)
    least, most = (max(floor, mean + side * _SPREAD * deviation) / counted_per_s for side in (-1.0, 1.0))
    return Wait(least, most)


def _log_factor(e: AssumedScores, contrast: Contrast, stake: float) -> tuple[float, float]:
    """Return mean and variance of the log factor of one request whose score has two values (`_two_points`)."""
    canary, control = contrast.factors
    centre = contrast.centre if contrast.ratio else 0.0
    on_canary = 1.0 if contrast.ratio == 0.0 else contrast.share
    factors = [
        (on_canary * part, 1.0 + stake * canary * (score - contrast.shift - centre))
        for part, score in _two_points(e.canary_mean, e.deviation)
    ] + [
        ((1.0 - on_canary) * part, 1.0 - stake * control * (contrast.ratio * score - centre))
        for part, score in _two_points(e.control_mean, e.deviation)
    ]
    if min(factor for _, factor in factors) <= 0.0:
        return -math.inf, 0.0
    mean = sum(part * math.log(factor) for part, factor in factors)
    square = sum(part * math.log(factor) ** 2 for part, factor in factors)
    return mean, square - mean**2


def _two_points(mean: float, deviation: float) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return (probability, score) of the least skewed law on two scores in [0, 1]; zeros and ones where only they can.

    A deviation above that of zeros and ones, sqrt(mean (1 - mean)), is taken as that.
    """
    deviation = min(deviation, math.sqrt(mean * (1.0 - mean)))
    if deviation == 0.0:
        return (1.0, mean), (0.0, mean)
    tilt = max(deviation / (1.0 - mean), min(1.0, mean / deviation))
    lower_part = 1.0 / (1.0 + tilt**2)
    return (lower_part, mean - deviation * tilt), (1.0 - lower_part, mean + deviation / tilt)
