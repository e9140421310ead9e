"""Breakers while serving: they take in the engine's counts, and the engine's plan leaves out what they say."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prolepsis.core.audit_event import AuditEvent, Emit, discard
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import TRAFFIC_CLASS
from prolepsis.core.files import data_directory, stamp, write_whole
from prolepsis.core.plan import LeftOut
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import Breaker, BreakerEvent, Breakers, ByHand, Key, State, TripReason
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.errors import RequestRefused
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes

STATES = ("closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only")

log = structlog.get_logger(__name__)


class SetByHand(BaseModel):
    """A breaker that was set manually, and by whom."""

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
    """The file of the breakers that were set manually: it outlives the server, and servers of one user share it."""

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


_GOOD_NEWS = ("back_off_over", "recovered", "by_hand", "exchanged")
"""Reasons that need no warning."""


class BreakerMetrics:
    """A proposer and a traffic class are each one of few, so they may be labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.events = Counter(
            "prolepsis_breaker_events",
            "Changes of breakers",
            ["proposer", "traffic_class", "before", "after", "reason"],
            registry=registry,
        )
        self._state = Gauge(
            "prolepsis_breaker_state",
            "1 for the state that a breaker is in",
            ["proposer", "traffic_class", "state"],
            registry=registry,
        )

    def changed(self, event: BreakerEvent) -> None:
        """Count a change and show the new state."""
        key = (event.proposer, event.traffic_class)
        self.events.labels(*key, event.before, event.after, event.reason).inc()
        for state in STATES:
            self._state.labels(*key, state).set(state == event.after)


class BreakerFeature(Feature):
    """Opens and closes breakers, and says which proposers the engine's plan leaves out. Belongs to one event loop."""

    name = "breaker"
    period_s = 0.2

    def __init__(
        self,
        breakers: Breakers | None,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        leave_out: Callable[[tuple[LeftOut, ...]], None],
        registry: CollectorRegistry,
        *,
        file: ByHandFile,
        proposers: Callable[[], Sequence[str]] = tuple,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`breakers`: None disables them. `file` keeps what is set manually; `proposers` are those of the engine."""
        self.breakers = breakers
        self.proposers = proposers
        self.routes = breaker_routes(self)
        self._counts = counts
        self._leave_out = leave_out
        self._metrics = BreakerMetrics(registry)
        self._emit = emit
        self._clock = clock
        self._file = file
        self._stamp = stamp(file.path)
        self._by_hand: dict[Key, SetByHand] = {}
        """As the file had it last."""
        if breakers is not None:
            self._follow_file(breakers)

    @property
    def shown(self) -> "BreakersReply":
        """All breakers, for people."""
        known = self.breakers.all.values() if self.breakers is not None else ()
        ordered = sorted(known, key=lambda breaker: (breaker.proposer, breaker.traffic_class))
        return BreakersReply(self.breakers is not None, [self.shown_one(breaker) for breaker in ordered])

    def shown_one(self, breaker: Breaker) -> "BreakerReply":
        """One breaker, for people."""
        window, seen = breaker.window, breaker.seen
        is_open = breaker.state == "open"
        return BreakerReply(
            proposer=breaker.proposer,
            traffic_class=breaker.traffic_class,
            state=breaker.state,
            acceptance=window.acceptance,
            judged=window.judged,
            spent=window.spent,
            gained=window.gained,
            rounds=window.rounds,
            errors_in_row=seen.errors_in_row,
            late_in_row=seen.late_in_row,
            probed_in_s=max(0.0, breaker.since + breaker.open_s - self._clock()) if is_open else None,
        )

    async def tick(self) -> None:
        """Take in what the engine counted, and the file if it changed; cheap if nothing did."""
        if self.breakers is None:
            return
        now = stamp(self._file.path)
        if now != self._stamp:
            self._stamp = now
            self._follow_file(self.breakers)
        self._follow(self.breakers, self.breakers.observe(self._counts(), self._clock()))

    def set(self, proposer: str, traffic_class: str, to: ByHand, by: str) -> tuple[Breaker, str]:
        """Set a breaker manually. Returns it, and an error message if the state could not be saved, else ""."""
        assert self.breakers is not None, "breakers that are disabled are refused before"
        key = (proposer, traffic_class)
        self._set(self.breakers, key, to, by)
        try:
            self._save(key, to, by)
        except ConfigError as error:
            log.error("breaker_not_saved", error=str(error))
            return self.breakers.all[key], str(error)
        return self.breakers.all[key], ""

    def trip(self, proposer: str, traffic_class: str, reason: TripReason) -> None:
        """Open a breaker for something that another feature saw."""
        if self.breakers is not None:
            self._follow(self.breakers, self.breakers.trip(proposer, traffic_class, reason, self._clock()))

    def _save(self, key: Key, to: ByHand, by: str) -> None:
        """Write the file with this entry, or without it if the breaker decides for itself again; raises `ConfigError`.

        The next tick reads the file, with what other servers wrote.
        """
        entries = self._by_hand
        with suppress(ConfigError):  # a damaged file is replaced
            entries = {entry.key: entry for entry in self._file.read()}
        others = tuple(entry for entry in entries.values() if entry.key != key)
        ours = () if to == "closed" else (SetByHand(proposer=key[0], traffic_class=key[1], state=to, by=by),)
        self._file.write((*others, *ours))

    def _follow_file(self, breakers: Breakers) -> None:
        """Set what the file sets; what it no longer names decides for itself. A damaged file changes nothing."""
        try:
            now = {entry.key: entry for entry in self._file.read()}
        except ConfigError as error:
            log.error("breaker_file_unusable", error=str(error))
            return
        before, self._by_hand = self._by_hand, now
        for key in before.keys() - now.keys():
            self._set(breakers, key, "closed", before[key].by)
        for key, entry in now.items():
            self._set(breakers, key, entry.state, entry.by)

    def _set(self, breakers: Breakers, key: Key, to: ByHand, by: str) -> None:
        self._follow(breakers, breakers.set(*key, to, self._clock(), by))

    def _follow(self, breakers: Breakers, events: Iterable[BreakerEvent]) -> None:
        for event in events:
            write = log.info if event.reason in _GOOD_NEWS else log.warning
            write("breaker", **asdict(event))
            self._metrics.changed(event)
            self._emit(
                AuditEvent(
                    actor=event.by or "server",
                    action=f"breaker.{event.after}",
                    subject=f"{event.proposer} {event.traffic_class}",
                    after=asdict(event),
                )
            )
        self._leave_out(breakers.left_out())


class BreakerBody(Body):
    """The breaker to set, and its new state."""

    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]
    state: ByHand


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReply:
    """One proposer in one traffic class; the figures are recent ones, older ones fade."""

    proposer: str
    traffic_class: str
    state: State
    acceptance: float | None
    judged: float
    spent: float
    gained: float
    rounds: float
    errors_in_row: int
    late_in_row: int
    probed_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSetReply(BreakerReply):
    not_kept: str | None
    """Why the state holds only until the server ends."""


@dataclass(frozen=True, slots=True)
class BreakersReply:
    enabled: bool
    breakers: list[BreakerReply]


def breaker_routes(feature: BreakerFeature) -> Sequence[Route]:
    """Return the routes that show and set breakers."""
    routes = Routes()

    @routes.get("/admin/breakers", roles=WATCHERS, summary="Breakers by proposer and traffic class")
    async def breakers() -> BreakersReply:
        return feature.shown

    @routes.put("/admin/breakers", roles=OPERATORS, summary="Set a breaker manually")
    async def set_breaker(body: Annotated[BreakerBody, read_body(BreakerBody)], caller: SignedIn) -> BreakerSetReply:
        if feature.breakers is None:
            message = "Breakers are disabled; start the server with --breaker on or metrics_only."
            raise RequestRefused(message, code="breakers_off")
        known = feature.proposers()
        if body.proposer not in known:
            message = f"proposer is {body.proposer!r}; allowed: {', '.join(known) or 'none is loaded'}"
            raise RequestRefused(message, code="invalid_value", param="proposer")
        breaker, fault = feature.set(body.proposer, body.traffic_class, body.state, caller.actor)
        return BreakerSetReply(**asdict(feature.shown_one(breaker)), not_kept=fault or None)

    return routes.all
