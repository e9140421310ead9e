"""Detectors of changes in a series of numbers: ADWIN and Page-Hinkley.

ADWIN's window is river's compiled one. It is taken from inside the package, as `river.drift` imports scipy for other
detectors: three seconds of a processor and 50 MB.
"""

from collections.abc import Callable

from river._river_rust.drift import AdaptiveWindowing

_MAX_BUCKETS = 5


class Adwin:
    """A window of the latest numbers that is cut where their mean has changed (Bifet and Gavalda 2007).

    `delta` bounds the probability of a false cut, for numbers within a range of 1; parts of fewer than `min_length`
    numbers are not compared, and nothing is before `grace_period` numbers came. A change starts the window again.
    """

    def __init__(self, delta: float, *, min_length: int, grace_period: int) -> None:
        self._make: Callable[[], AdaptiveWindowing] = lambda: AdaptiveWindowing(
            delta=delta, clock=1, max_buckets=_MAX_BUCKETS, min_window_length=min_length, grace_period=grace_period
        )
        self._window = self._make()
        self.detected = False
        """Whether the last number showed a change."""

    def update(self, value: float) -> None:
        """Take in a number."""
        if self.detected:
            self._window = self._make()
        self.detected = bool(self._window.update(value))

    @property
    def width(self) -> int:
        """How many numbers are in the window."""
        return int(self._window.get_width())

    @property
    def mean(self) -> float:
        """Of the window; 0 if it is empty."""
        return float(self._window.get_total()) / self.width if self.width else 0.0


class PageHinkley:
    """Detects that the mean of a series rose (Page 1954).

    `delta` is the rise that is tolerated, `threshold` the sum of larger ones that is a change, from the
    `min_instances`-th number on. Old deviations fade by `FADING` a number.
    """

    FADING = 1 - 0.0001

    def __init__(self, *, min_instances: int, delta: float, threshold: float) -> None:
        self._min_instances, self._delta, self._threshold = min_instances, delta, threshold
        self.detected = False
        """Whether the last number showed a rise."""
        self._restart()

    def _restart(self) -> None:
        self._count, self._mean = 0, 0.0
        self._sum, self._lowest = 0.0, float("inf")

    def update(self, value: float) -> None:
        """Take in a number; one that follows a rise starts a new series."""
        if self.detected:
            self._restart()
        self._count += 1
        self._mean += (value - self._mean) / self._count
        self._sum = self.FADING * self._sum + value - self._mean - self._delta
        self._lowest = min(self._lowest, self._sum)
        self.detected = self._count >= self._min_instances and self._sum - self._lowest > self._threshold
