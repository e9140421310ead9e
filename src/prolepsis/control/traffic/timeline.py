"""Sums over short spans of time, the last hour of them: what charts show. Bounded, and lost when the server ends."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from prolepsis.core.traffic_sums import TrafficSums


@dataclass(slots=True)
class TimelineSpan(TrafficSums):
    """Sums of requests that ended within one span; gauges hold their last value."""

    at: float = field(kw_only=True)  # its beginning, Unix time
    num_running: int = 0
    num_waiting: int = 0
    kv_usage: float = 0.0


@dataclass(slots=True)
class Timeline:
    """The last `length` spans of `width_s` seconds; spans in which nothing happened are there too."""

    width_s: float
    length: int
    now: Callable[[], float] = time.time
    _spans: deque[TimelineSpan] = field(init=False)

    def __post_init__(self) -> None:
        self._spans = deque(maxlen=self.length)

    def current(self) -> TimelineSpan:
        """Return the span of the present; the clock may have been set back, then it is the last one."""
        start = self.now() // self.width_s * self.width_s
        if not self._spans or start - self._spans[-1].at > self.width_s * self.length:
            self._spans.append(TimelineSpan(at=start))
        while start > self._spans[-1].at:
            self._spans.append(TimelineSpan(at=self._spans[-1].at + self.width_s))
        return self._spans[-1]

    @property
    def spans(self) -> Sequence[TimelineSpan]:
        """Oldest first, up to the present."""
        self.current()
        return list(self._spans)
