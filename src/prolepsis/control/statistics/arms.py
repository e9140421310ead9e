"""Counts of what requests showed, mergeable and in little memory: scores of two arms, and values by size."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

Arm = Literal["canary", "control"]
WIDTH = 1.02  # upper edge over lower edge of a bin: the precision of a quantile
_SMALLEST = 1e-9  # values up to this one share a bin


@dataclass(frozen=True, slots=True)
class ScoreHistogram:
    """Scores in [0, 1] as weights at evenly spaced points; each score is split between its two neighbouring points.

    The split keeps the mean. A concave function summed over the points is never more than summed over the scores
    (Jensen). Wealth is the logarithm of a linear function, so the wealth computed from a histogram is at most that of
    the scores themselves: coarse points cost power, never validity. Zeros and ones on two points are kept exactly.
    """

    weights: tuple[float, ...]
    count: int = 0
    excess: float = 0.0
    """Sum of what was clipped from the scores: the test is of clipped scores, what people read is of all."""

    @classmethod
    def empty(cls, num_points: int = 2) -> Self:
        assert num_points >= 2, "zero and one are points"
        return cls((0.0,) * num_points)

    @property
    def mean(self) -> float:
        """The mean of the scores; 0 without scores."""
        top = len(self.weights) - 1
        return sum(w * i for i, w in enumerate(self.weights)) / (top * self.count) if self.count else 0.0

    @property
    def whole_mean(self) -> float:
        """The mean of the scores as they were before they were clipped; 0 without scores."""
        return self.mean + self.excess / self.count if self.count else 0.0

    def observe(self, score: float, excess: float = 0.0) -> Self:
        """Return the histogram with one more score in [0, 1], from which `excess` was clipped."""
        assert 0.0 <= score <= 1.0, "scores are in [0, 1]"
        position = score * (len(self.weights) - 1)
        lower = min(int(position), len(self.weights) - 2)
        upper_part = position - lower
        weights = list(self.weights)
        weights[lower] += 1.0 - upper_part
        weights[lower + 1] += upper_part
        return replace(self, weights=tuple(weights), count=self.count + 1, excess=self.excess + excess)

    def __add__(self, other: Self) -> Self:
        """Return the histogram of both streams together."""
        weights = tuple(a + b for a, b in zip(self.weights, other.weights, strict=True))
        return replace(self, weights=weights, count=self.count + other.count, excess=self.excess + other.excess)


@dataclass(frozen=True, slots=True)
class ArmScores:
    """Scores of both arms on one guardrail since its stage began; the scores of replicas are added."""

    canary: ScoreHistogram
    control: ScoreHistogram

    @classmethod
    def empty(cls, num_points: int = 2) -> Self:
        return cls(ScoreHistogram.empty(num_points), ScoreHistogram.empty(num_points))

    def observe(self, arm: Arm, score: float, excess: float = 0.0) -> Self:
        """Return the scores with one more, in [0, 1], of a finished request of `arm`; `excess` was clipped from it."""
        if arm == "canary":
            return replace(self, canary=self.canary.observe(score, excess))
        return replace(self, control=self.control.observe(score, excess))

    def __add__(self, other: Self) -> Self:
        return replace(self, canary=self.canary + other.canary, control=self.control + other.control)

    @property
    def spans(self) -> tuple[Self, ...]:
        return (self,)

    @property
    def total(self) -> Self:
        return self


class Scores(Protocol):
    """Scores of both arms on one guardrail: of a whole stage, or of the spans of a moving window."""

    @property
    def spans(self) -> Sequence[ArmScores]:
        """Consecutive spans of time, oldest first: bets begin with each."""

    @property
    def total(self) -> ArmScores:
        """All of them added."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Nonnegative values in bins of 2 % width; `counts[b]` values lie in (WIDTH**(b - 1), WIDTH**b]."""

    counts: Mapping[int, int] = field(default_factory=dict)
    count: int = 0
    total: float = 0.0

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def observe(self, value: float) -> Self:
        """Return the histogram with one more value >= 0."""
        assert value >= 0.0, "durations, costs and rates are not negative"
        number = math.ceil(math.log(max(value, _SMALLEST), WIDTH))
        counts = {**self.counts, number: self.counts.get(number, 0) + 1}
        return replace(self, counts=counts, count=self.count + 1, total=self.total + value)

    def __add__(self, other: Self) -> Self:
        counts = {b: self.counts.get(b, 0) + other.counts.get(b, 0) for b in {*self.counts, *other.counts}}
        return replace(self, counts=counts, count=self.count + other.count, total=self.total + other.total)

    def quantile(self, level: float) -> float:
        """Return the upper edge of the bin with the quantile; 0 without values."""
        below = 0
        for number in sorted(self.counts):
            below += self.counts[number]
            if below >= level * self.count:
                return _edge(number)
        return 0.0

    def bounds(self, level: float, alpha: float) -> tuple[float, float]:
        """Return bounds of the quantile that hold at all times at once with probability 1 - alpha.

        An edge x is excluded if the share of values up to x is not believable for a probability of `level`, by
        Robbins' beta-binomial mixture on the indicators; only x = the quantile must be right, so no other alpha is
        spent (Howard and Ramdas, Bernoulli 2022, arXiv 1906.09712, section 3). The values have to come from one
        distribution. The bounds are edges, so at most one bin wider than the exact ones.
        """
        needed = -math.log(alpha)
        lower, below = 0.0, 0
        for number in sorted(self.counts):
            below += self.counts[number]
            if log_evidence_against(level, below, self.count) >= needed:
                if below > level * self.count:
                    return lower, _edge(number)
                lower = _edge(number)
        return lower, math.inf


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


def _edge(number: int) -> float:
    return float(WIDTH**number)
