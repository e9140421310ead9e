"""Breakers while serving: they see the engine's counts, and the plan leaves out what they say."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict

import structlog

from prolepsis.control.breaker.board import Breakers
from prolepsis.control.breaker.events import BreakerEvent, TripReason
from prolepsis.control.breaker.state import Breaker, ByHand
from prolepsis.core.plan import LeftOut
from prolepsis.core.slice_counts import SliceCounts
from prolepsis.telemetry.control import ControlMetrics

log = structlog.get_logger(__name__)

_QUIET = ("back_off_over", "recovered", "by_hand", "exchanged")
"""Reasons that are no bad news."""


class BreakerWatch:
    """Tells `leave_out` what the engine's plan is to leave out. Belongs to one event loop."""

    def __init__(
        self,
        breakers: Breakers,
        counts: Callable[[], Iterable[SliceCounts]],
        leave_out: Callable[[tuple[LeftOut, ...]], None],
        metrics: ControlMetrics,
        *,
        tell: Callable[[BreakerEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` hears of every change, beside log and metrics."""
        self._breakers = breakers
        self._counts = counts
        self._leave_out = leave_out
        self._metrics = metrics
        self._tell = tell
        self._clock = clock

    @property
    def breakers(self) -> Sequence[Breaker]:
        return sorted(self._breakers.all.values(), key=lambda breaker: (breaker.proposer, breaker.slice))

    def look(self) -> None:
        """Take in what the engine counted."""
        self._follow(self._breakers.observe(self._counts(), self._clock()))

    def set(self, proposer: str, slice_name: str, to: ByHand, by: str) -> Breaker:
        """Set one by hand and return it."""
        self._follow(self._breakers.set(proposer, slice_name, to, self._clock(), by))
        return self._breakers.all[proposer, slice_name]

    def trip(self, proposer: str, slice_name: str, reason: TripReason) -> None:
        """Open one for what something else has seen of its proposer."""
        self._follow(self._breakers.trip(proposer, slice_name, reason, self._clock()))

    def open_for_s(self, breaker: Breaker) -> float | None:
        """Return in how many seconds an open breaker is probed; None for others."""
        return max(0.0, breaker.since + breaker.open_s - self._clock()) if breaker.state == "open" else None

    def _follow(self, events: Iterable[BreakerEvent]) -> None:
        for event in events:
            say = log.info if event.reason in _QUIET else log.warning
            say("breaker", **asdict(event))
            labels = (event.proposer, event.slice, event.before, event.after, event.reason)
            self._metrics.breaker_events.labels(*labels).inc()
            self._metrics.breaker(event.proposer, event.slice, event.after)
            if self._tell is not None:
                self._tell(event)
        self._leave_out(self._breakers.left_out())
