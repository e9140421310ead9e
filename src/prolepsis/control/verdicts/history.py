"""Values of one arm by size: quantiles, their confidence sequences, and the mean, mergeable and in little memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from prolepsis.control.verdicts.beta_binomial import log_evidence_against

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
