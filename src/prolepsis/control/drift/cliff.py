"""A sudden fall of acceptance to nearly nothing, over a window of the last judged drafts."""

from collections import deque

from prolepsis.core.slice_counts import SliceCounts


class RecentShare:
    """Share of right first tokens over the shortest time that holds at least `least` judged drafts and `seconds`.

    That long, so that one request that nobody could draft for does not fill it.
    """

    def __init__(self, least: int, seconds: float) -> None:
        self._least = least
        self._seconds = seconds
        self._readings: deque[tuple[float, int, int]] = deque()

    def add(self, reading: SliceCounts, now: float) -> None:
        """Take in a reading at `now` (seconds) that has more judged drafts than the one before.

        At most so many readings are kept as come within `seconds`, and `least`.
        """
        self._readings.append((now, reading.num_judged, reading.num_right))
        while len(self._readings) > 1 and self._is_enough(1):
            self._readings.popleft()

    @property
    def value(self) -> float | None:
        """None before there is enough."""
        if not self._readings or not self._is_enough(0):
            return None
        (_, first, right_first), (_, last, right_last) = self._readings[0], self._readings[-1]
        return (right_last - right_first) / (last - first)

    def clear(self, reading: SliceCounts, now: float) -> None:
        """Begin anew after `reading`."""
        self._readings = deque([(now, reading.num_judged, reading.num_right)])

    def _is_enough(self, i: int) -> bool:
        """Whether what came after the reading `i` is enough."""
        (began, first, _), (now, last, _) = self._readings[i], self._readings[-1]
        return last - first >= self._least and now - began >= self._seconds
