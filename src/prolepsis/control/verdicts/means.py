"""What a guardrail may ask of means: difference, ratio, ratio of geometric means, and a limit for the canary alone.

`margin` is how much worse the canary may be. Values beyond [low, high] are taken as `low` or `high`: the mean of the
clipped values is what is tested. Each request weighs the same, whatever its length.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from prolepsis.control.verdicts.arms import Arm
from prolepsis.control.verdicts.contrast import Contrast
from prolepsis.control.verdicts.history import History

Better = Literal["lower", "higher"]
FINE = 33
"""Knots for values between zero and one."""
HEADROOM = 4.0
"""Times a mean: where amounts are clipped, so that one request cannot decide."""


def sign_of(better: Better) -> int:
    """Return 1 where more is harm, -1 where less is."""
    return 1 if better == "lower" else -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """E[canary] - E[control], against `margin` in the metric's own unit; rates are means of zeros and ones."""

    margin: float
    low: float = 0.0
    high: float = 1.0
    num_knots: int = 2
    baseline: float | None = None
    """About the control's mean, in the metric's unit."""
    ready = True

    def score(self, _arm: Arm, value: float) -> float:
        return _clip((value - self.low) / (self.high - self.low))

    def contrast(self, better: Better, share: float) -> Contrast:
        span = self.high - self.low
        centre = 0.5 if self.baseline is None else _clip((self.baseline - self.low) / span)
        return Contrast(sign_of(better) * self.margin / span, centre=centre, share=share)

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        return replace(contrast, shift=x)

    def shown(self, x: float) -> float:
        return x * (self.high - self.low)

    def estimate(self, canary: float, control: float) -> float:
        return canary - control

    def reference_from(self, history: History) -> float | None:
        return history.mean if history.count else None

    def referring_to(self, reference: float) -> Self:
        return replace(self, baseline=reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """E[canary] / E[control], against 1 + `margin` (lower is better) or 1 - `margin`; values in [0, high].

    `high` None: `HEADROOM` times what the control showed before; until that is known there is no verdict.
    A ratio of means is tested as the difference E[canary] - (1 + margin) E[control], so nothing is divided by an
    estimate.
    """

    margin: float
    high: float | None = None
    num_knots: int = FINE
    baseline: float | None = None

    @property
    def ready(self) -> bool:
        return self.high is not None

    def score(self, _arm: Arm, value: float) -> float:
        assert self.high is not None, "calibrated before requests are scored"
        return _clip(value / self.high)

    def contrast(self, better: Better, share: float) -> Contrast:
        centre = 0.5 if self.baseline is None or self.high is None else _clip(self.baseline / self.high)
        return Contrast(0.0, ratio=1.0 + sign_of(better) * self.margin, centre=centre, share=share)

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        return replace(contrast, ratio=1.0 + x)

    def shown(self, x: float) -> float:
        return 1.0 + x

    def estimate(self, canary: float, control: float) -> float:
        return canary / control - 1.0 if control else 0.0

    def reference_from(self, history: History) -> float | None:
        return history.mean or None

    def referring_to(self, reference: float) -> Self:
        return replace(self, baseline=reference, high=self.high or HEADROOM * reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRatio:
    """Ratio of geometric means, against 1 + `margin` or 1 - `margin`; for values over orders of magnitude.

    The mean of logarithms is tested: what is typical, little moved by a heavy tail. Values in [low, high], low > 0.
    """

    margin: float
    low: float
    high: float
    num_knots: int = FINE
    baseline: float | None = None
    ready = True

    @property
    def _span(self) -> float:
        return math.log(self.high / self.low)

    def score(self, _arm: Arm, value: float) -> float:
        return _clip(math.log(max(value, self.low) / self.low) / self._span)

    def contrast(self, better: Better, share: float) -> Contrast:
        allowed = math.log1p(sign_of(better) * self.margin) / self._span
        centre = 0.5 if self.baseline is None else self.score("control", self.baseline)
        return Contrast(allowed, centre=centre, share=share)

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        return replace(contrast, shift=x)

    def shown(self, x: float) -> float:
        return math.exp(x * self._span)

    def estimate(self, canary: float, control: float) -> float:
        return canary - control

    def reference_from(self, history: History) -> float | None:
        return history.quantile(0.5) or None

    def referring_to(self, reference: float) -> Self:
        return replace(self, baseline=reference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """E[canary] against `limit`, whatever the control does."""

    limit: float
    low: float = 0.0
    high: float = 1.0
    num_knots: int = 2
    ready = True

    def score(self, _arm: Arm, value: float) -> float:
        return _clip((value - self.low) / (self.high - self.low))

    def contrast(self, _better: Better, share: float) -> Contrast:
        return Contrast((self.limit - self.low) / (self.high - self.low), ratio=0.0, share=share)

    def vary(self, contrast: Contrast, x: float) -> Contrast:
        return replace(contrast, shift=x)

    def shown(self, x: float) -> float:
        return self.low + x * (self.high - self.low)

    def estimate(self, canary: float, _control: float) -> float:
        return canary

    def reference_from(self, _history: History) -> None:
        return None

    def referring_to(self, _reference: float) -> Self:
        return self


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))
