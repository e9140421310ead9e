"""Bounds on quantiles: canary against control, and a limit for the canary alone; lower is better."""

from dataclasses import dataclass, replace
from typing import Self

from prolepsis.control.statistics.arms import Arm, Histogram
from prolepsis.control.statistics.means import Better, Contrast, Measure


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileRatio(Measure):
    """Quantile of the canary over that of the control, against 1 + `margin`.

    With x the control's quantile, Q(canary) <= (1 + margin) x says P(canary > (1 + margin) x) <= P(control > x). That
    difference of two rates, the surplus of slow requests, is tested and shown. x is the control's quantile before the
    stage (`reference`, None: not known yet, no judgement). Where the control has moved since, the same is tested at the
    level where x lies now.
    """

    level: float
    margin: float
    reference: float | None = None
    num_points = 2

    @property
    def ready(self) -> bool:
        return self.reference is not None

    def score(self, arm: Arm, value: float) -> float:
        assert self.reference is not None, "calibrated before requests are scored"
        return float(value > self.reference * (1.0 + self.margin if arm == "canary" else 1.0))

    def contrast(self, better: Better, share: float) -> Contrast:
        assert better == "lower", "quantiles are of times, sizes and costs"
        return Contrast(0.0, centre=1.0 - self.level, share=share)

    def reference_from(self, history: Histogram) -> float | None:
        return history.quantile(self.level) if history.count else None

    def referring_to(self, reference: float) -> Self:
        return replace(self, reference=reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileLimit(Measure):
    """Quantile of the canary against `limit`: P(canary > limit) <= 1 - level. That share is shown."""

    level: float
    limit: float
    num_points = 2
    has_control = False

    def score(self, _arm: Arm, value: float) -> float:
        return float(value > self.limit)

    def contrast(self, better: Better, share: float) -> Contrast:
        assert better == "lower", "quantiles are of times, sizes and costs"
        return Contrast(1.0 - self.level, ratio=0.0, share=share)

    def estimate(self, canary: float, _control: float) -> float:
        return canary
