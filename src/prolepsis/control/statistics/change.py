"""Detects a change of the mean of a series of scores: an e-detector against a baseline learned from its first scores.

Scores are in [0, 1], one a request. A bet is a likelihood ratio: of the baseline's scores, tilted exponentially to a
mean that is worse, over the same tilted to the edge of what is tolerated. So it takes the evidence of each score;
bets on means alone have to hold for any scores, and take less. A bet on each of some sizes begins every eighth score,
and the sum of their wealths is compared with `ALARM` (Shin, Ramdas and Rinaldo, arXiv 2203.03532, as in `window`).

While scores are drawn like the baseline's, with a mean within the tolerance, a false alarm comes after at least a
million scores in expectation; at the baseline itself they are far rarer. Waves of a day and a baseline of few scores
are outside of that theory: `benchmarks/drift_alarms.py` shows what they do.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from prolepsis.core.json_value import JsonValue

ALARM = 1.3e5
SIZES = (0.9, 0.75, 0.6, 0.4, 0.2)
"""What bets say that is left of the tolerated mean, or of its distance from 1."""
NUM_SIZES = len(SIZES)
POINTS = 13  # points of the histogram of scores: multiples of 1/12, as scores of one to four drafts are
LEARN = 200  # scores of which the baseline is the mean before anything is judged
_SOME = 50  # scores of which a mean is shown
FROZEN = 100_000
"""Scores after which the baseline stays. Those that come while there is some evidence of a change are left out."""
BEGIN_EVERY = 8
_RECENT = 8  # scores
_MOST = 2.0  # that one score multiplies a wealth by: a rare score of the baseline decides nothing alone
_PSEUDO_COUNT = 0.5  # at each point, so that none is impossible
_STEEPEST, _HALVINGS = 20.0, 30  # of the tilt by point, when it is searched
DOUBT = 30.0  # wealth from which on scores are left out of the baseline

Change = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class MeanState(JsonValue):
    """A watch as it is stored: the baseline's sum, count and histogram, and the wealth of the bets on either side."""

    total: float
    number: int
    lower: tuple[float, ...] = field(default=(0.0,) * NUM_SIZES)
    higher: tuple[float, ...] = field(default=(0.0,) * NUM_SIZES)
    histogram: tuple[int, ...] = field(default=(0,) * POINTS)

    @property
    def mean(self) -> float | None:
        """As in `MeanWatch`."""
        return self.total / self.number if self.number >= _SOME else None

    @property
    def is_learning(self) -> bool:
        """Whether there is no baseline yet."""
        return self.number < LEARN

    @property
    def is_whole(self) -> bool:
        """Whether this version of the software wrote it."""
        return len(self.lower) == len(self.higher) == NUM_SIZES and len(self.histogram) == POINTS


class MeanWatch:
    """Holds one series; its size is constant."""

    def __init__(self, tolerance: Callable[[float], float], state: MeanState | None = None) -> None:
        """`tolerance`: how far from a baseline the mean may go."""
        state = state if state is not None and state.is_whole else MeanState(0.0, 0)
        self._tolerance = tolerance
        self._total, self._number = state.total, state.number
        self._histogram = list(state.histogram)
        self._bets = Bets((), ())
        self._renew_at = 0
        self._num_seen = 0
        self._lower, self._higher = list(state.lower), list(state.higher)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def state(self) -> MeanState:
        histogram = tuple(self._histogram)
        return MeanState(self._total, self._number, tuple(self._lower), tuple(self._higher), histogram)

    @property
    def number(self) -> int:
        """Scores that the baseline is the mean of."""
        return self._number

    @property
    def recent(self) -> float:
        """The mean of the last eight scores; 0 before the first."""
        return sum(self._recent) / len(self._recent) if self._recent else 0.0

    @property
    def mean(self) -> float | None:
        """The baseline, or what it is by now; None before the fiftieth score."""
        return self.mean_after(_SOME)

    def mean_after(self, least: int) -> float | None:
        """Return the baseline, or what it is by now; None before this many scores."""
        return self._total / self._number if self._number >= least else None

    @property
    def baseline(self) -> float | None:
        """None while it is learned."""
        return self.mean_after(LEARN)

    def see(self, score: float) -> Change | None:
        """Process a score in [0, 1]; return how the mean changed. `restart` or `bet_again` has to follow a change."""
        assert 0.0 <= score <= 1.0, "scores are in [0, 1]"
        self._num_seen += 1
        self._recent.append(score)
        is_ready, point = self.baseline is not None, round((POINTS - 1) * score)
        if is_ready and self._number >= self._renew_at:
            self._bets = bets(self._histogram, self._tolerance)
            self._renew_at = self._number + renewed_after(self._number)
        if self._number < FROZEN and max(sum(self._lower), sum(self._higher)) < DOUBT * NUM_SIZES:
            self._total, self._number = self._total + score, self._number + 1
            self._histogram[point] += 1
        if not is_ready:
            return None
        begins = self._num_seen % BEGIN_EVERY == 0
        if _bet(self._lower, self._bets.lower, point, begins=begins):
            return "lower"
        return "higher" if _bet(self._higher, self._bets.higher, point, begins=begins) else None

    def restart(self) -> None:
        """Learn the baseline again."""
        self._total, self._number, self._renew_at = 0.0, 0, 0
        self._histogram = [0] * POINTS
        self.bet_again()

    def bet_again(self) -> None:
        """Keep the baseline, and forget the evidence against it."""
        self._lower, self._higher = [0.0] * NUM_SIZES, [0.0] * NUM_SIZES


Factors = Sequence[Sequence[float]]
"""What the wealth of a bet is multiplied by: by size, by point of the score."""


@dataclass(frozen=True, slots=True)
class Bets:
    """Bets that the mean is lower, or higher, than tolerated; none on a side where no mean is."""

    lower: Factors
    higher: Factors


def renewed_after(number: int) -> int:
    """Return for how many more scores the bets of a baseline of `number` scores stay."""
    return max(20, number // 10)


def bets(histogram: Sequence[int], tolerance: Callable[[float], float]) -> Bets:
    """Return the bets against a baseline; to the tolerance one standard error of the baseline is added."""
    number = sum(histogram)
    mean = sum(i * count for i, count in enumerate(histogram)) / (POINTS - 1) / number
    square = sum(i * i * count for i, count in enumerate(histogram)) / (POINTS - 1) ** 2 / number
    tolerated = tolerance(mean) + math.sqrt(max(0.0, square - mean * mean) / number)
    low, high = mean - tolerated, mean + tolerated
    return Bets(
        _factors(histogram, low, [size * low for size in SIZES]) if low > 0.0 else (),
        _factors(histogram, high, [1.0 - size * (1.0 - high) for size in SIZES]) if high < 1.0 else (),
    )


def _factors(histogram: Sequence[int], edge: float, means: Sequence[float]) -> Factors:
    tolerated = _tilted(histogram, edge)
    return [
        [min(_MOST, chance / usual) for chance, usual in zip(_tilted(histogram, mean), tolerated, strict=True)]
        for mean in means
    ]


def _tilted(histogram: Sequence[int], mean: float) -> Sequence[float]:
    """Return the chances of the points, as in the histogram but weighed by exp(tilt * score), with this mean."""
    low, high = -_STEEPEST, _STEEPEST
    chances: Sequence[float] = ()
    for _ in range(_HALVINGS):
        tilt = (low + high) / 2.0
        weights = [(count + _PSEUDO_COUNT) * math.exp(tilt * i) for i, count in enumerate(histogram)]
        whole = math.fsum(weights)
        chances = [weight / whole for weight in weights]
        is_less = sum(i * chance for i, chance in enumerate(chances)) < mean * (POINTS - 1)
        low, high = (tilt, high) if is_less else (low, tilt)
    return chances


def _bet(wealth: list[float], factors: Factors, point: int, *, begins: bool) -> bool:
    """Let all bets on a score; return whether their mean over the sizes is an alarm."""
    for i, row in enumerate(factors):
        wealth[i] = (wealth[i] + begins) * row[point]
    return math.fsum(wealth) >= ALARM * NUM_SIZES
