"""All breakers of one engine."""

from collections.abc import Iterable, Mapping, Sequence

from prolepsis.control.breaker.events import BreakerEvent, TripReason
from prolepsis.control.breaker.settings import BreakerSettings
from prolepsis.control.breaker.state import Breaker, ByHand
from prolepsis.control.breaker.step import set_by_hand, step, trip
from prolepsis.core.plan import LeftOut
from prolepsis.core.slice_counts import SliceCounts

Key = tuple[str, str]
"""Proposer and slice."""


class Breakers:
    """One breaker for each pair of proposer and slice that the engine counts, or that somebody set by hand."""

    def __init__(self, settings: BreakerSettings, *, metrics_only: bool = False) -> None:
        """`metrics_only`: all begin so; they say when they would open, and nothing is left out."""
        self._settings = settings
        self._begin_as: ByHand = "metrics_only" if metrics_only else "closed"
        self._breakers: dict[Key, Breaker] = {}

    @property
    def all(self) -> Mapping[Key, Breaker]:
        return self._breakers

    def observe(self, counts: Iterable[SliceCounts], now: float) -> Sequence[BreakerEvent]:
        """Take in the engine's counts at `now` (seconds); return what happened."""
        events: list[BreakerEvent] = []
        for reading in counts:
            key = (reading.proposer, reading.slice)
            breaker = self._of(key, now)
            if breaker.state == "closed" and breaker.seen == reading:  # most of them, at most looks
                continue
            self._breakers[key], told = step(breaker, reading, now, self._settings)
            events += told
        return events

    def set(self, proposer: str, slice_name: str, to: ByHand, now: float, by: str) -> Sequence[BreakerEvent]:
        """Set one by hand, also before the engine counts anything of it; `closed` lets it decide by itself again."""
        key = (proposer, slice_name)
        self._breakers[key], told = set_by_hand(self._of(key, now), to, now, by)
        return told

    def trip(self, proposer: str, slice_name: str, reason: TripReason, now: float) -> Sequence[BreakerEvent]:
        """Open one for what something else has seen of its proposer."""
        key = (proposer, slice_name)
        self._breakers[key], told = trip(self._of(key, now), reason, now, self._settings)
        return told

    def left_out(self) -> tuple[LeftOut, ...]:
        """Return what the plan is to leave out."""
        said = (breaker.left_out(self._settings.probes) for breaker in self._breakers.values())
        return tuple(entry for entry in said if entry is not None)

    def _of(self, key: Key, now: float) -> Breaker:
        return self._breakers.get(key) or Breaker(*key, state=self._begin_as, since=now)
