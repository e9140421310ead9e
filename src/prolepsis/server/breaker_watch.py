"""Breakers while serving: they see the engine's counts, and the plan leaves out what they say."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict

import structlog

from prolepsis.control.breaker.board import Breakers, Key
from prolepsis.control.breaker.by_hand_file import ByHandFile, SetByHand
from prolepsis.control.breaker.events import BreakerEvent, TripReason
from prolepsis.control.breaker.state import Breaker, ByHand
from prolepsis.control.last_good import stamp
from prolepsis.core.errors import ConfigError
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
        file: ByHandFile,
        tell: Callable[[BreakerEvent], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file`: what is set by hand is kept there. `tell` hears of every change, beside log and metrics."""
        self._breakers = breakers
        self._counts = counts
        self._leave_out = leave_out
        self._metrics = metrics
        self._tell = tell
        self._clock = clock
        self._file = file
        self._stamp = stamp(file.path)
        self._by_hand: dict[Key, SetByHand] = {}
        """As the file had it last."""
        self._follow_file()

    @property
    def breakers(self) -> Sequence[Breaker]:
        return sorted(self._breakers.all.values(), key=lambda breaker: (breaker.proposer, breaker.slice))

    def look(self) -> None:
        """Take in what the engine counted, and the file where it changed; cheap where it did not."""
        now = stamp(self._file.path)
        if now != self._stamp:
            self._stamp = now
            self._follow_file()
        self._follow(self._breakers.observe(self._counts(), self._clock()))

    def set(self, proposer: str, slice_name: str, to: ByHand, by: str) -> tuple[Breaker, str]:
        """Set one by hand; return it, and why that will not outlive the server, nothing where it will."""
        key = (proposer, slice_name)
        self._set(key, to, by)
        try:
            self._keep(key, to, by)
        except ConfigError as error:
            log.error("breaker_not_kept", error=str(error))
            return self._breakers.all[key], str(error)
        return self._breakers.all[key], ""

    def trip(self, proposer: str, slice_name: str, reason: TripReason) -> None:
        """Open one for what something else has seen of its proposer."""
        self._follow(self._breakers.trip(proposer, slice_name, reason, self._clock()))

    def open_for_s(self, breaker: Breaker) -> float | None:
        """Return in how many seconds an open breaker is probed; None for others."""
        return max(0.0, breaker.since + breaker.open_s - self._clock()) if breaker.state == "open" else None

    def _keep(self, key: Key, to: ByHand, by: str) -> None:
        """Write the file with this one in it, or without it where it decides by itself again; raises `ConfigError`.

        The next look follows it, with what other servers wrote.
        """
        entries = self._by_hand
        with suppress(ConfigError):  # one that is damaged is written anew
            entries = {entry.key: entry for entry in self._file.read()}
        others = tuple(entry for entry in entries.values() if entry.key != key)
        ours = () if to == "closed" else (SetByHand(proposer=key[0], slice=key[1], state=to, by=by),)
        self._file.write((*others, *ours))

    def _follow_file(self) -> None:
        """Set what the file sets, and let what it no more has decide by itself; a damaged file changes nothing."""
        try:
            now = {entry.key: entry for entry in self._file.read()}
        except ConfigError as error:
            log.error("breaker_file_unusable", error=str(error))
            return
        before, self._by_hand = self._by_hand, now
        for key in before.keys() - now.keys():
            self._set(key, "closed", before[key].by)
        for key, entry in now.items():
            self._set(key, entry.state, entry.by)

    def _set(self, key: Key, to: ByHand, by: str) -> None:
        self._follow(self._breakers.set(*key, to, self._clock(), by))

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
