"""Evidence against a stated probability, in closed form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self


def log_evidence_against(probability: float, num_successes: int, num_trials: int) -> float:
    """Return the logarithm of Robbins' mixture against "each trial succeeds with `probability`".

    The likelihood averaged over a uniform prior, divided by the likelihood at `probability` in (0, 1):
    B(k + 1, n - k + 1) / (p^k (1 - p)^(n - k)), a martingale that starts at 1 (Robbins, Ann. Math. Stat. 1970; Howard,
    Ramdas, McAuliffe and Sekhon, Ann. Stat. 2021, arXiv 1810.08240, proposition 7). Valid at any time: 1 / alpha is
    ever reached with probability at most alpha.
    """
    failures = num_trials - num_successes
    averaged = math.lgamma(num_successes + 1) + math.lgamma(failures + 1) - math.lgamma(num_trials + 2)
    return averaged - num_successes * math.log(probability) - failures * math.log1p(-probability)


@dataclass(frozen=True, slots=True)
class Tally:
    """Values in [0, 1], each split between its two neighbouring knots so that its mean is kept.

    A concave function summed over the knots is never more than summed over the values (Jensen). Wealth is the logarithm
    of a linear function, so what is computed from a tally is at most the wealth of the values themselves: coarse knots
    cost power, never validity. Zeros and ones on two knots are kept exactly.
    """

    weights: tuple[float, ...]
    count: int = 0

    @classmethod
    def empty(cls, num_knots: int = 2) -> Self:
        assert num_knots >= 2, "zero and one are knots"
        return cls((0.0,) * num_knots)

    @property
    def mean(self) -> float:
        """The values' mean; 0 without values."""
        top = len(self.weights) - 1
        return sum(w * i for i, w in enumerate(self.weights)) / (top * self.count) if self.count else 0.0

    def observe(self, value: float) -> Self:
        """Return the tally with one more value in [0, 1]."""
        assert 0.0 <= value <= 1.0, "scores are in [0, 1]"
        place = value * (len(self.weights) - 1)
        lower = min(int(place), len(self.weights) - 2)
        upper_part = place - lower
        weights = list(self.weights)
        weights[lower] += 1.0 - upper_part
        weights[lower + 1] += upper_part
        return replace(self, weights=tuple(weights), count=self.count + 1)

    def __add__(self, other: Self) -> Self:
        """Return what one tally of both streams would hold."""
        weights = tuple(a + b for a, b in zip(self.weights, other.weights, strict=True))
        return replace(self, weights=weights, count=self.count + other.count)


WIDTH = 1.02
"""Upper edge over lower edge of a bin: what a quantile is exact to."""
_SMALLEST = 1e-9  # values up to this one share a bin


@dataclass(frozen=True, slots=True)
class History:
    """Nonnegative values in bins of 2 % width; `counts[b]` values lie in (WIDTH**(b - 1), WIDTH**b]."""

    counts: Mapping[int, int] = field(default_factory=dict)
    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def observe(self, value: float) -> Self:
        """Return the history with one more value >= 0."""
        assert value >= 0.0, "durations, costs and rates are not negative"
        place = math.ceil(math.log(max(value, _SMALLEST), WIDTH))
        counts = {**self.counts, place: self.counts.get(place, 0) + 1}
        return replace(self, counts=counts, count=self.count + 1, total=self.total + value)

    def __add__(self, other: Self) -> Self:
        counts = {b: self.counts.get(b, 0) + other.counts.get(b, 0) for b in {*self.counts, *other.counts}}
        return replace(self, counts=counts, count=self.count + other.count, total=self.total + other.total)

    def quantile(self, level: float) -> float:
        """Return the upper edge of the bin with the quantile; 0 without values."""
        below = 0
        for place in sorted(self.counts):
            below += self.counts[place]
            if below >= level * self.count:
                return _edge(place)
        return 0.0

    def bounds(self, level: float, alpha: float) -> tuple[float, float]:
        """Return bounds of the quantile that hold at all times at once with probability 1 - alpha.

        An edge x is left out where the share of values up to x is not believable for a probability of `level`, by
        Robbins' beta-binomial mixture on the indicators; only x = the quantile must be right, so no other alpha is
        spent (Howard and Ramdas, Bernoulli 2022, arXiv 1906.09712, section 3). For values that come from one
        distribution. The bounds are edges, so at most one bin wider than the exact ones.
        """
        needed = -math.log(alpha)
        lower, below = 0.0, 0
        for place in sorted(self.counts):
            below += self.counts[place]
            if log_evidence_against(level, below, self.count) >= needed:
                if below > level * self.count:
                    return lower, _edge(place)
                lower = _edge(place)
        return lower, math.inf


def _edge(place: int) -> float:
    return float(WIDTH**place)


Arm = Literal["canary", "control"]


@dataclass(frozen=True, slots=True)
class Arms:
    """What the requests of each arm showed on one guardrail since its stage began; arms of replicas are added."""

    canary: Tally
    control: Tally

    @classmethod
    def empty(cls, num_knots: int = 2) -> Self:
        return cls(Tally.empty(num_knots), Tally.empty(num_knots))

    def observe(self, arm: Arm, score: float) -> Self:
        """Return the arms with the score, in [0, 1], of one more finished request."""
        if arm == "canary":
            return replace(self, canary=self.canary.observe(score))
        return replace(self, control=self.control.observe(score))

    def __add__(self, other: Self) -> Self:
        return replace(self, canary=self.canary + other.canary, control=self.control + other.control)
