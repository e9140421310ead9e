"""Which breakers were set by hand, in a file: it outlives the server, and servers of one user share it."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import data_directory, stamp, write_whole
from prolepsis.core.plan import LeftOut
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import Breaker, BreakerEvent, Breakers, ByHand, Key, TripReason
from prolepsis.telemetry.control import ControlMetrics

log = structlog.get_logger(__name__)


class SetByHand(BaseModel):
    """One breaker, and who set it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(max_length=256)]
    state: Literal["forced_open", "forced_closed", "metrics_only"]
    by: Annotated[str, Field(max_length=256)] = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.proposer, self.traffic_class


def default_breaker_file() -> Path:
    return data_directory() / "breakers.json"


class ByHandFile:
    """Reads and writes the file; a write is whole or not at all, and on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[SetByHand, ...]:
        """Return what is set; raises `ConfigError` for a file that cannot be read or understood."""
        try:
            return _ENTRIES.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            message = f"breaker file {self.path} cannot be read: {error.strerror}"
            raise ConfigError(message, param="breaker_file") from None
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the file"
            message = f"breaker file {self.path} is damaged: {where}: {problem['msg'].lower()}"
            raise ConfigError(message, param="breaker_file") from None

    def write(self, entries: tuple[SetByHand, ...]) -> None:
        """Replace the file; raises `ConfigError` where that fails, and what was there stays."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, _ENTRIES.dump_json(entries))
        except OSError as error:
            message = f"breaker file {self.path} cannot be written: {error.strerror}"
            raise ConfigError(message, param="breaker_file") from None


_ENTRIES = TypeAdapter(tuple[SetByHand, ...])


_QUIET = ("back_off_over", "recovered", "by_hand", "exchanged")
"""Reasons that are no bad news."""


class BreakerWatch:
    """Tells `leave_out` what the engine's plan is to leave out. Belongs to one event loop."""

    def __init__(
        self,
        breakers: Breakers,
        counts: Callable[[], Iterable[TrafficClassCounts]],
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
        return sorted(self._breakers.all.values(), key=lambda breaker: (breaker.proposer, breaker.traffic_class))

    def look(self) -> None:
        """Take in what the engine counted, and the file where it changed; cheap where it did not."""
        now = stamp(self._file.path)
        if now != self._stamp:
            self._stamp = now
            self._follow_file()
        self._follow(self._breakers.observe(self._counts(), self._clock()))

    def set(self, proposer: str, traffic_class: str, to: ByHand, by: str) -> tuple[Breaker, str]:
        """Set one by hand; return it, and why that will not outlive the server, nothing where it will."""
        key = (proposer, traffic_class)
        self._set(key, to, by)
        try:
            self._keep(key, to, by)
        except ConfigError as error:
            log.error("breaker_not_kept", error=str(error))
            return self._breakers.all[key], str(error)
        return self._breakers.all[key], ""

    def trip(self, proposer: str, traffic_class: str, reason: TripReason) -> None:
        """Open one for what something else has seen of its proposer."""
        self._follow(self._breakers.trip(proposer, traffic_class, reason, self._clock()))

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
        ours = () if to == "closed" else (SetByHand(proposer=key[0], traffic_class=key[1], state=to, by=by),)
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
            labels = (event.proposer, event.traffic_class, event.before, event.after, event.reason)
            self._metrics.breaker_events.labels(*labels).inc()
            self._metrics.breaker(event.proposer, event.traffic_class, event.after)
            if self._tell is not None:
                self._tell(event)
        self._leave_out(self._breakers.left_out())
