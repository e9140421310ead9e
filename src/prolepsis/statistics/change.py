"""Whether the mean of a series of scores changed: an e-detector against a baseline learnt from its first scores.

Scores are in [0, 1], one a request. A bet that the mean is beyond its tolerance begins every eighth score, and the sum
of their wealths is compared with `ALARM` (Shin, Ramdas and Rinaldo, arXiv 2203.03532, as in `window`). While the mean
is anywhere within its tolerance, a false alarm comes after at least 2.4 million scores in expectation.
At the baseline itself false alarms are far rarer: `tests/simulation/drift_traffic.py` shows how much.
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from prolepsis.core.json_value import JsonValue
from prolepsis.statistics.means import NUM_STAKES, Contrast

ALARM = 3e5
LEARN = 200
"""Scores of which the baseline is the mean before anything is judged."""
_SOME = 50  # scores of which a mean is shown
FROZEN = 100_000
"""Scores after which the baseline stays. Those that come while there is some evidence of a change are left out."""
BEGIN_EVERY = 8
_RECENT = 8  # scores
DOUBT = 30.0
"""Wealth from which on scores are left out of the baseline."""

Change = Literal["lower", "higher"]


@dataclass(frozen=True, slots=True)
class MeanState(JsonValue):
    """A watch as it is stored: the baseline's sum and count, and the wealth of the bets on either side by stake."""

    total: float
    number: int
    lower: tuple[float, ...] = field(default=(0.0,) * NUM_STAKES)
    higher: tuple[float, ...] = field(default=(0.0,) * NUM_STAKES)


class MeanWatch:
    """Holds one series; its size is constant."""

    def __init__(self, tolerance: Callable[[float], float], state: MeanState | None = None) -> None:
        """`tolerance`: how far from a baseline the mean may go."""
        state = state or MeanState(0.0, 0)
        self._tolerance = tolerance
        self._total, self._number = state.total, state.number
        self._num_seen = 0
        self._lower, self._higher = list(state.lower), list(state.higher)
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @property
    def state(self) -> MeanState:
        return MeanState(self._total, self._number, tuple(self._lower), tuple(self._higher))

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
        return self._total / self._number if self._number >= _SOME else None

    @property
    def baseline(self) -> float | None:
        """None while it is learnt."""
        return self.mean if self._number >= LEARN else None

    def see(self, score: float) -> Change | None:
        """Take in a score in [0, 1]; return how the mean changed. `restart` or `bet_again` has to follow a change."""
        assert 0.0 <= score <= 1.0, "scores are in [0, 1]"
        baseline, self._num_seen = self.baseline, self._num_seen + 1
        self._recent.append(score)
        if self._number < FROZEN and max(sum(self._lower), sum(self._higher)) < DOUBT * NUM_STAKES:
            self._total, self._number = self._total + score, self._number + 1
        if baseline is None:
            return None
        begins, tolerance = self._num_seen % BEGIN_EVERY == 0, self._tolerance(baseline)
        if _bet(self._lower, _bets(baseline - tolerance, -1), score, begins=begins):
            return "lower"
        if _bet(self._higher, _bets(baseline + tolerance, 1), score, begins=begins):
            return "higher"
        return None

    def restart(self) -> None:
        """Learn the baseline again."""
        self._total, self._number = 0.0, 0
        self.bet_again()

    def bet_again(self) -> None:
        """Keep the baseline, and forget the evidence against it."""
        self._lower, self._higher = [0.0] * NUM_STAKES, [0.0] * NUM_STAKES


@dataclass(frozen=True, slots=True)
class _Bets:
    bound: float
    stakes: tuple[float, ...]


@lru_cache(maxsize=4096)
def _bets(bound: float, sign: int) -> _Bets:
    """Return the bets that the mean is beyond `bound`, to the side of `sign`; none where no mean is."""
    if not 0.0 < bound < 1.0:
        return _Bets(bound, ())
    return _Bets(bound, Contrast(bound, ratio=0.0).stakes(sign))


def _bet(wealth: list[float], bets: _Bets, score: float, *, begins: bool) -> bool:
    """Let all bets on a score; return whether their mean over the stakes is an alarm."""
    if not bets.stakes:
        return False
    gain = score - bets.bound
    for i, stake in enumerate(bets.stakes):
        wealth[i] = (wealth[i] + begins) * (1.0 + stake * gain)
    return math.fsum(wealth) >= ALARM * NUM_STAKES
