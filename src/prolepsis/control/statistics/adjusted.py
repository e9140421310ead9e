"""Bounds of a ratio of mean amounts, canary over control, with what each request was expected to take as covariate.

Amounts with heavy tails differ most by what is known of a request on either arm alike: the tokens of its prompt and of
its answer. Let X be what it was expected to take as control, R = amount / X, and u its size, X over a typical one. With
w the share of the canary, v = min(w, 1 - w) and a ratio r,

    Z = (v / w) u (R - c)  if canary,   Z = -(v / (1 - w)) u (r R - c)  if control

with any constant c has expectation v (E[u R] canary - r E[u R] control), as E[u] is the same on both arms. So, as in
`means`, the product of 1 + stake * Z is a nonnegative supermartingale, and bounds of r by inversion hold at all times
at once. A wrong X makes bounds wider, not wrong. It is the control variate of regression adjustment (Lin, Ann. Appl.
Stat. 2013; Deng, Xu, Kohavi and Walker, WSDM 2013), within a bet (Waudby-Smith and Ramdas, arXiv 2010.09686).

The size is clipped at `reach`, R a little below it: 2 and 1.75 at first, twice that for each eightfold number of
requests. A tight clip lets few requests answer; one that grows leaves no bias in the end.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from prolepsis.control.statistics.arms import Arm

FIRST_REACH = 2.0
FIRST_SPAN = 400
"""Requests that are clipped at the first reach; each next span ends at eight times the number."""
_RATIO_PART = 0.875  # where ratios are clipped, as a part of the reach
_SIZES, _RATIOS = 5, 33  # points between 0 and the clip
_NUM_STAKES = 8
_LARGEST_PART = 0.9  # of the stake at which one request could take everything
_LOG_PRIOR = [
    math.log((_NUM_STAKES + 1) / _NUM_STAKES / ((i + 1) * (i + 2)))  # together 1
    for i in range(_NUM_STAKES)
]
"""Weights of the stakes, each half of the one before: large effects, which large stakes find, cost little evidence."""
_HIGHEST = 4.0  # the largest ratio that is looked at
_HALVINGS = 13

_Cell = tuple[int, int]
_Points = Sequence[tuple[float, Sequence[tuple[float, float, float]], Sequence[tuple[float, float, float]]]]
"""By span: its highest ratio, and the points of canary and control."""


@dataclass(slots=True)
class _Span:
    """Requests that are clipped alike: weights at points of size and ratio, by arm. The split keeps both means.

    The logarithm of a factor is concave in each of the two, so wealth from points is at most that from requests.
    """

    reach: float
    cells: dict[Arm, dict[_Cell, float]] = field(default_factory=lambda: {"canary": {}, "control": {}})

    @property
    def highest(self) -> float:
        """The ratio at which larger ones are clipped."""
        return _RATIO_PART * self.reach

    def add(self, arm: Arm, size: float, ratio: float) -> None:
        cells = self.cells[arm]
        for i, part in _split(size / self.reach, _SIZES):
            for j, share in _split(ratio / self.highest, _RATIOS):
                cells[i, j] = cells.get((i, j), 0.0) + part * share

    def points(self, arm: Arm) -> Iterator[tuple[float, float, float]]:
        """Yield size as a part of the reach, ratio, and weight."""
        for (i, j), weight in self.cells[arm].items():
            yield i / (_SIZES - 1), self.highest * j / (_RATIOS - 1), weight


def _split(place: float, num_points: int) -> tuple[tuple[int, float], tuple[int, float]]:
    position = min(1.0, max(0.0, place)) * (num_points - 1)
    lower = min(int(position), num_points - 2)
    return (lower, 1.0 - position + lower), (lower + 1, position - lower)


def reach_after(number: int) -> float:
    """Return at what the request after `number` others is clipped."""
    reach, end = FIRST_REACH, FIRST_SPAN
    while number >= end:
        reach, end = 2.0 * reach, 8 * end
    return reach


class AdjustedRatio:
    """E[canary] / E[control] of amounts; a few kilobytes for any number of requests."""

    def __init__(self, share: float | None) -> None:
        """`share`: the probability of the canary, between 0 and 1; None: there is no control.

        Without a control E[u R] / E[u] of the canary is bounded: what it takes of what is expected.
        """
        assert share is None or 0.0 < share < 1.0, "two arms need requests on both"
        smaller = 1.0 if share is None else min(share, 1.0 - share)
        self._canary = 1.0 if share is None else smaller / share
        self._control = None if share is None else smaller / (1.0 - share)
        self._spans: list[_Span] = []
        self.counts: dict[Arm, int] = {"canary": 0, "control": 0}

    def observe(self, arm: Arm, amount: float, *, expected: float, typical: float, reach: float) -> None:
        """Count a request.

        `expected`: about what it takes as control, > 0, known alike on both arms; `typical`: the size of most. Both
        come from earlier requests, as does `reach` (`reach_after`), which never falls.
        """
        if not self._spans or self._spans[-1].reach != reach:
            self._spans.append(_Span(reach))
        self._spans[-1].add(arm, expected / typical, amount / expected)
        self.counts[arm] += 1

    @property
    def least_count(self) -> int:
        """Requests of the smaller arm."""
        return self.counts["canary"] if self._control is None else min(self.counts.values())

    def bounds(self, alpha: float) -> tuple[float, float]:
        """Return the bounds of the ratio, each right at all times at once with probability 1 - `alpha`.

        0 and infinity where there is no bound yet.
        """
        needed = -math.log(alpha)
        spans = self._points()
        lower = _edge(lambda ratio: self._log_evidence(spans, 1, ratio) < needed)
        upper = _edge(lambda ratio: self._log_evidence(spans, -1, ratio) >= needed)
        return (lower if lower > _HIGHEST / 2**_HALVINGS else 0.0), (upper if upper < _HIGHEST else math.inf)

    def excludes(self, ratio: float, alpha: float) -> bool:
        """Return whether the bounds leave out a ratio, in a tenth of the time."""
        spans = self._points()
        return max(self._log_evidence(spans, sign, ratio) for sign in (1, -1)) >= -math.log(alpha)

    def _points(self) -> _Points:
        return [(span.highest, [*span.points("canary")], [*span.points("control")]) for span in self._spans]

    def _log_evidence(self, spans: _Points, sign: int, ratio: float) -> float:
        """Return the log of the mixed wealth of bets that the ratio is larger (1) or smaller (-1) than this one."""
        wealths = [self._log_wealth(spans, sign / 2.0**i, ratio) + log_part for i, log_part in enumerate(_LOG_PRIOR)]
        best = max(wealths)
        return best + math.log(sum(math.exp(w - best) for w in wealths)) if best > -math.inf else best

    def _log_wealth(self, spans: _Points, part: float, ratio: float) -> float:
        """Return the log of the wealth by a part of the largest stake, -1 to 1; -inf if it may be < 0."""
        total, is_alone, of_control = 0.0, self._control is None, self._control or 0.0
        for highest, canary, control in spans:
            centre = ratio if is_alone else min(1.0, highest / 2.0)
            stake = part * _LARGEST_PART / (highest if is_alone else max(centre, highest - centre))
            if max(stake * centre, stake * of_control * (ratio * highest - centre)) >= 1.0:
                return -math.inf
            bet = stake * self._canary
            total += sum(weight * math.log1p(bet * size * (score - centre)) for size, score, weight in canary)
            bet = stake * of_control
            total += sum(weight * math.log1p(bet * size * (centre - ratio * score)) for size, score, weight in control)
        return total


def _edge(beyond: Callable[[float], bool]) -> float:
    """Return the smallest ratio that is `beyond`, as all larger ones are; the highest one if none is."""
    low, high = 0.0, _HIGHEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if beyond(middle) else (middle, high)
    return high
