"""What one arm's requests showed, in memory that does not grow: weights at evenly spaced knots of [0, 1]."""

from dataclasses import dataclass, replace
from typing import Self


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
