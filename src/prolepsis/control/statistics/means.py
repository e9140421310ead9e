"""Tests of means: the bet under every guardrail, and the bounds on means that a guardrail may set.

Let a request go to the canary with probability w given the past, and let its score be Y1 there and Y0 as
control, both in [0, 1]. With v = min(w, 1 - w) and any constants c (centre), r (ratio) and d (shift),

    Z = (v / w) (Y1 - d - c)  if canary,   Z = -(v / (1 - w)) (r Y0 - c)  if control

has expectation v (E Y1 - r E Y0 - d) given the past: the inverse-probability estimate of an effect, here with a
constant control variate. So where theta = E Y1 - r E Y0 - d <= 0 at each request, the product of 1 + stake * Z with
stakes > 0 is a nonnegative supermartingale, and it ever reaches 1 / alpha with probability at most alpha (Ville 1939).
Nothing is required of the scores but their range: load may drift, tenants may differ, requests may resemble each other.

A bound has a `margin`: how much worse the canary may be. Values beyond [low, high] count as `low` or `high`; the mean
of the clipped values is tested. Each request weighs the same, long or short.

Sources: betting on bounded means and fixed stakes in a mixture, Waudby-Smith and Ramdas, J. R. Stat. Soc. B 2024
(arXiv 2010.09686); design-based confidence sequences, Ham, Bojinov, Lindon and Tingley (arXiv 2210.08639).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import mul
from typing import Literal, Self

from prolepsis.control.statistics.arms import Arm, ArmScores, Histogram, ScoreHistogram, Scores

NUM_STAKES = 12
"""Each stake is half the one before: three orders of magnitude of effects, for at most log 12 of evidence."""
_LARGEST_PART = 0.9  # of the stake at which one request could take everything
_LARGEST_STAKE = 1000.0


@dataclass(frozen=True, slots=True)
class Contrast:
    """theta = E[canary] - ratio * E[control] - shift, on scores in [0, 1]; ratio 0: the control does not count."""

    shift: float
    ratio: float = 1.0
    centre: float = 0.5
    """About the control's mean; it decides how soon a judgement comes, not whether it is right."""
    share: float = 0.5  # probability that a request goes to the canary

    def __post_init__(self) -> None:
        assert 0.0 < self.share < 1.0 or self.ratio == 0.0, "two arms need requests on both"
        assert 0.0 <= self.centre <= 1.0, "the centre is a score"

    @property
    def factors(self) -> tuple[float, float]:
        """v / w and v / (1 - w); (1, 0) with one arm."""
        if self.ratio == 0.0:
            return 1.0, 0.0
        smaller = min(self.share, 1.0 - self.share)
        return smaller / self.share, smaller / (1.0 - self.share)

    @property
    def _centre(self) -> float:
        return self.centre if self.ratio else 0.0

    def stakes(self, sign: int) -> tuple[float, ...]:
        """Return the stakes of the mixture against "theta <= 0" (sign 1) or "theta >= 0" (sign -1), the latter < 0."""
        canary, control = self.factors
        if sign > 0:
            worst = max(canary * (self.shift + self._centre), control * (self.ratio - self._centre))
        else:
            worst = max(canary * (1.0 - self.shift - self._centre), control * self._centre)
        largest = min(_LARGEST_STAKE, _LARGEST_PART / max(worst, 1.0 / _LARGEST_STAKE))
        return tuple(sign * largest / 2**i for i in range(NUM_STAKES))

    def log_wealth(self, arms: ArmScores, stake: float) -> float:
        """Return the log of the wealth that 1 becomes by betting `stake` on each request; -inf if it may be < 0."""
        canary, control = self.factors
        step, back = stake * canary, stake * control
        return _log_growth(arms.canary, 1.0 - step * (self.shift + self._centre), step) + _log_growth(
            arms.control, 1.0 + back * self._centre, -back * self.ratio
        )

    def log_evidence(self, scores: Scores, stakes: tuple[float, ...]) -> float:
        """Return the logarithm of the wealth of bets that begin with each span, summed, as the mean over `stakes`.

        Of a single span: an e-process, compared with log(1 / alpha). Of several: an e-detector of the Shiryaev-Roberts
        kind (Shin, Ramdas and Rinaldo, arXiv 2203.03532); spans before a change do not hide it.
        """
        spans = scores.spans
        wealths = [self._log_sum(spans, stake) for stake in stakes]
        best = max(wealths)
        if best == -math.inf:
            return best
        return best + math.log(sum(math.exp(wealth - best) for wealth in wealths) / len(stakes))

    def _log_sum(self, spans: Sequence[ArmScores], stake: float) -> float:
        """Return the log of the summed wealth of one bet a span: each begins with 1 and continues to the end."""
        total = -math.inf
        for arms in spans:
            begun = max(total, 0.0) + math.log1p(math.exp(-abs(total)))
            total = begun + self.log_wealth(arms, stake)
        return total


_RUIN = -1e300  # in place of log 0, as it may be multiplied by a weight of 0


def _log_growth(histogram: ScoreHistogram, intercept: float, slope: float) -> float:
    """Return the sum of log(intercept + slope * score); -inf if a score in [0, 1] could make a factor negative."""
    if intercept < 0.0 or intercept + slope < 0.0:
        return -math.inf
    weights = histogram.weights
    total = sum(map(mul, weights, _log_factors(intercept, slope, len(weights))))
    return total if total > _RUIN / 1e200 else -math.inf


@lru_cache(maxsize=2048)
def _log_factors(intercept: float, slope: float, num_points: int) -> tuple[float, ...]:
    factors = (intercept + slope * i / (num_points - 1) for i in range(num_points))
    return tuple(math.log(factor) if factor > 0.0 else _RUIN for factor in factors)


Better = Literal["lower", "higher"]
FINE = 33  # points of a histogram for values between zero and one
HEADROOM = 4.0  # amounts are clipped at this many times a limit, so that one request cannot decide
RATIO_HEADROOM = 2.0
"""Amounts of two arms are clipped at this many times the control's mean: a wider clip makes heavy tails decide late."""


def sign_of(better: Better) -> int:
    """Return 1 if more is harm, -1 if less is."""
    return 1 if better == "lower" else -1


class Measure(ABC):
    """A test of one metric on scores in [0, 1]; the defaults suit a difference that waits for no reference."""

    __slots__ = ()
    num_points: int  # points of the histograms of its scores
    reference_requests = 100  # values of the control that a reference takes: enough for a high quantile
    has_control = True  # the canary is compared with the control; a limit looks at the canary alone

    @property
    def ready(self) -> bool:
        """Whether values can be scored; false while the reference that the scores need is not known."""
        return True

    @abstractmethod
    def score(self, arm: Arm, value: float) -> float:
        """Return the score of a value, which is in the metric's unit."""

    def excess(self, _arm: Arm, _value: float) -> float:
        """Return what the score leaves out of a value beyond its range, on the scale of scores."""
        return 0.0

    @abstractmethod
    def contrast(self, better: Better, share: float) -> Contrast:
        """Return the bet at the margin or limit; `share`: the probability of the canary."""

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        """Return the contrast with `x` in place of what is bounded."""
        return replace(contrast, shift=x)

    def estimate(self, canary: float, control: float) -> float:
        """Return what is bounded, from the mean scores of the arms."""
        return canary - control

    def shown(self, x: float) -> float:
        """Return what is bounded on the scale that people read."""
        return x

    def reference_from(self, _history: Histogram) -> float | None:
        """Return the number that the test takes from the control's values before the stage; None: it takes none."""
        return None

    def referring_to(self, _reference: float) -> Self:
        """Return the test with that number."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanDifference(Measure):
    """E[canary] - E[control] of values in [0, 1], against `margin`; rates are means of zeros and ones."""

    margin: float
    num_points: int = 2
    baseline: float | None = None  # about the control's mean

    def score(self, _arm: Arm, value: float) -> float:
        return _clip(value)

    def excess(self, _arm: Arm, value: float) -> float:
        return _beyond(value)

    def contrast(self, better: Better, share: float) -> Contrast:
        centre = 0.5 if self.baseline is None else _clip(self.baseline)
        return Contrast(sign_of(better) * self.margin, centre=centre, share=share)

    def reference_from(self, history: Histogram) -> float | None:
        return history.mean if history.count else None

    def referring_to(self, reference: float) -> Self:
        return replace(self, baseline=reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio(Measure):
    """E[canary] / E[control], against 1 + `margin` (lower is better) or 1 - `margin`; values in [0, high].

    A negative margin asks for a gain: to pass, the canary is surely better by so much.

    `high` None: `RATIO_HEADROOM` times the control's mean before the stage; until that is known there is no judgement.
    A ratio of means is tested as the difference E[canary] - (1 + margin) E[control], so nothing is divided by an
    estimate.
    """

    margin: float
    high: float | None = None
    num_points: int = FINE
    baseline: float | None = None
    reference_requests = 20

    @property
    def ready(self) -> bool:
        return self.high is not None

    def score(self, _arm: Arm, value: float) -> float:
        assert self.high is not None, "calibrated before requests are scored"
        return _clip(value / self.high)

    def excess(self, _arm: Arm, value: float) -> float:
        return _beyond(value / self.high) if self.high is not None else 0.0

    def contrast(self, better: Better, share: float) -> Contrast:
        centre = 0.5 if self.baseline is None or self.high is None else _clip(self.baseline / self.high)
        return Contrast(0.0, ratio=1.0 + sign_of(better) * self.margin, centre=centre, share=share)

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        return replace(contrast, ratio=1.0 + x)

    def shown(self, x: float) -> float:
        return 1.0 + x

    def estimate(self, canary: float, control: float) -> float:
        return canary / control - 1.0 if control else 0.0

    def reference_from(self, history: Histogram) -> float | None:
        return history.mean or None

    def referring_to(self, reference: float) -> Self:
        return replace(self, baseline=reference, high=self.high or RATIO_HEADROOM * reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit(Measure):
    """E[canary] against `limit`; the control does not count."""

    limit: float
    low: float = 0.0
    high: float = 1.0
    num_points: int = 2
    has_control = False

    def score(self, _arm: Arm, value: float) -> float:
        return _clip((value - self.low) / (self.high - self.low))

    def excess(self, _arm: Arm, value: float) -> float:
        return _beyond((value - self.low) / (self.high - self.low))

    def contrast(self, _better: Better, share: float) -> Contrast:
        return Contrast((self.limit - self.low) / (self.high - self.low), ratio=0.0, share=share)

    def shown(self, x: float) -> float:
        return self.low + x * (self.high - self.low)

    def estimate(self, canary: float, _control: float) -> float:
        return canary


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))


def _beyond(score: float) -> float:
    return score - _clip(score)
