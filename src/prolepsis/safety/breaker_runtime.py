"""Breakers while serving: they read the engine's counts, and the plan leaves out the proposers that they disable."""

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import quote, unquote
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import TRAFFIC_CLASS
from prolepsis.core.files import JsonFile, data_directory
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import (
    STATES,
    Breaker,
    BreakerEvent,
    BreakerFigures,
    Breakers,
    Key,
    OperatorState,
    State,
    TripReason,
)
from prolepsis.safety.shared_controls import SharedControls, Values
from prolepsis.telemetry.declare import counter, gauge
from prolepsis.web.body_reader import read_body
from prolepsis.web.caller import SignedIn
from prolepsis.web.errors import RequestRefused
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.routes import OPERATORS, WATCHERS, Route, Routes

OVERRIDDEN, OPENED = "breaker", "breaker_opened"
"""Kinds of the controls in the store: breakers that operators set, and breakers that opened by themselves."""
NEWS_S = 60.0
"""A breaker that opened on another replica longer ago is left to judge by itself."""

log = structlog.get_logger(__name__)


class BreakerOverride(BaseModel):
    """A breaker that an operator set."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(max_length=256)]
    state: Literal["forced_open", "forced_closed", "metrics_only"]
    by: Annotated[str, Field(max_length=256)] = ""

    @property
    def key(self) -> Key:
        return self.proposer, self.traffic_class


BreakerFile = JsonFile[tuple[BreakerOverride, ...]]
"""The overrides outlive the server, and the servers of one user share them."""


def breaker_file(path: Path | None = None) -> BreakerFile:
    """Return the breaker file; by default the one that this user's servers share."""
    adapter = TypeAdapter(tuple[BreakerOverride, ...])
    return JsonFile(path or data_directory() / "breakers.json", adapter, absent=(), param="breaker_file")


_QUIET = ("backoff_elapsed", "recovered", "operator", "replaced")
"""Reasons that are not logged as warnings."""


class BreakerMetrics:
    """A proposer and a traffic class are each one of few, so they may be labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ("proposer", "traffic_class")
        text = "Changes of breakers"
        self.events = counter(registry, "breaker_events", text, *by, "before", "after", "reason", most=160)
        self._state = gauge(registry, "breaker_state", "1 for the state that a breaker is in", *by, "state", most=240)

    def changed(self, event: BreakerEvent) -> None:
        """Count a change and show the new state."""
        key = (event.proposer, event.traffic_class)
        self.events.labels(*key, event.before, event.after, event.reason).inc()
        for state in STATES:
            self._state.labels(*key, state).set(state == event.after)


class BreakerFeature(Feature):
    """Calls `disable` with the proposers that the engine's plan must leave out. Belongs to one event loop."""

    name = "breaker"
    period_s = 0.2
    ticks_before_serving = True

    def __init__(
        self,
        breakers: Breakers | None,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        disable: Callable[[tuple[DisabledProposer, ...]], None],
        registry: CollectorRegistry,
        *,
        file: BreakerFile,
        shared: SharedControls | None = None,
        proposers: Callable[[], Sequence[str]] = tuple,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`breakers`: None disables them. `file` keeps the overrides; `proposers` are those of the engine.

        `shared`: operators set breakers for all replicas, and one that opens by itself opens on all.
        """
        self.breakers = breakers
        self.proposers = proposers
        self.routes = breaker_routes(self)
        self._counts = counts
        self._disable = disable
        self._metrics = BreakerMetrics(registry)
        self._emit = emit
        self._clock = clock
        self._file = file
        self._shared = shared
        self._replica = uuid4().hex
        self._in_file: dict[Key, BreakerOverride] = {}
        """As last read from the file."""
        self._in_store: dict[Key, BreakerOverride] = {}
        self._overrides: dict[Key, BreakerOverride] = {}
        """Overrides from file and store, as last applied."""
        self._opened: Values = shared.of(OPENED) if shared is not None else {}
        """Breakers that opened on any replica, as last read from the store."""
        if breakers is not None:
            self._follow_file(breakers)
            if shared is not None:
                shared.follow(OVERRIDDEN, partial(self._follow_store, breakers))
                shared.follow(OPENED, partial(self._follow_opened, breakers))

    @property
    def shown(self) -> "BreakersReply":
        """All breakers, for people."""
        known = self.breakers.all.values() if self.breakers is not None else ()
        ordered = sorted(known, key=lambda breaker: (breaker.proposer, breaker.traffic_class))
        return BreakersReply(self.breakers is not None, [self.shown_one(breaker) for breaker in ordered])

    def shown_one(self, breaker: Breaker) -> "BreakerReply":
        """One breaker, for people."""
        probed_in_s = max(0.0, breaker.since + breaker.open_s - self._clock()) if breaker.state == "open" else None
        return BreakerReply(
            state=breaker.state, reason=breaker.why, by=breaker.by, probed_in_s=probed_in_s, **breaker.figures
        )

    async def tick(self) -> None:
        """Process what the engine counted, and the file if it changed; cheap if nothing did."""
        if self.breakers is None:
            return
        if self._file.changed():
            self._follow_file(self.breakers)
        self._follow(self.breakers, self.breakers.observe(self._counts(), self._clock()))

    def set(self, key: Key, state: OperatorState, by: str) -> tuple[Breaker, str]:
        """Set a breaker for an operator; return it, with an error message if the state could not be saved, else ""."""
        assert self.breakers is not None, "disabled breakers are refused before"
        self._set(self.breakers, key, state, by)
        try:
            self._save(key, state, by)
        except ConfigError as error:
            log.error("breaker_not_saved", error=str(error))
            return self.breakers.all[key], str(error)
        return self.breakers.all[key], ""

    def trip(self, key: Key, reason: TripReason) -> None:
        """Open a breaker for an outside reason."""
        if self.breakers is not None:
            self._follow(self.breakers, self.breakers.trip(key, reason, self._clock()))

    def _save(self, key: Key, state: OperatorState, by: str) -> None:
        """Keep this override, or none if the breaker decides again; raises `ConfigError`."""
        entry = None
        if state != "closed":
            entry = BreakerOverride(proposer=key[0], traffic_class=key[1], state=state, by=by)
        if self._shared is None:
            self._write_file(key, entry)
            return
        if key in self._in_file:
            self._write_file(key, None)
            del self._in_file[key]
        fault = self._shared.set(OVERRIDDEN, " ".join(key), entry.model_dump_json() if entry else None)
        if fault:
            raise ConfigError(fault, param="breaker_file")

    def _write_file(self, key: Key, entry: BreakerOverride | None) -> None:
        """Write the file with this override, or without it; raises `ConfigError`.

        The next tick follows the file, with the overrides of other servers.
        """
        with self._file.locked():
            entries = self._in_file
            with suppress(ConfigError):  # a damaged file is replaced
                entries = {one.key: one for one in self._file.read()}
            others = tuple(one for one in entries.values() if one.key != key)
            self._file.write((*others, entry) if entry is not None else others)

    def _follow_file(self, breakers: Breakers) -> None:
        """Apply the file's overrides, and close the breakers whose override is gone; a damaged file changes nothing."""
        try:
            self._in_file = {entry.key: entry for entry in self._file.read()}
        except ConfigError as error:
            log.error("breaker_file_unusable", error=str(error))
            return
        self._override(breakers)

    def _follow_store(self, breakers: Breakers, values: Values) -> None:
        """Apply the overrides of all replicas; what this version does not understand changes nothing."""
        try:
            self._in_store = {entry.key: entry for entry in map(BreakerOverride.model_validate_json, values.values())}
        except ValidationError as error:
            log.error("shared_breakers_unusable", error=str(error))
            return
        self._override(breakers)

    def _follow_opened(self, breakers: Breakers, values: Values) -> None:
        """Open the breakers that opened on another replica since the last look; each replica probes for itself."""
        before, self._opened = self._opened, values
        for name, value in values.items():
            opened = _Opened.read(value)
            is_news = before.get(name) != value and opened.replica != self._replica
            if is_news and time.time() - opened.at < NEWS_S:
                proposer, _, traffic_class = name.partition(" ")
                key = proposer, traffic_class
                self._follow(breakers, breakers.trip(key, "shared", self._clock(), opened.tenants))

    def _override(self, breakers: Breakers) -> None:
        """Apply the overrides of file and store; where they differ, what stops wins, else the store."""
        now = self._in_file | self._in_store
        now |= {key: entry for key, entry in self._in_file.items() if entry.state == "forced_open"}
        before, self._overrides = self._overrides, now
        for key in before.keys() - now.keys():
            self._set(breakers, key, "closed", before[key].by)
        for key, entry in now.items():
            self._set(breakers, key, entry.state, entry.by)

    def _set(self, breakers: Breakers, key: Key, state: OperatorState, by: str) -> None:
        self._follow(breakers, breakers.set(key, state, self._clock(), by))

    def _follow(self, breakers: Breakers, events: Iterable[BreakerEvent]) -> None:
        for event in events:
            write = log.info if event.reason in _QUIET else log.warning
            write("breaker", **asdict(event))
            self._metrics.changed(event)
            self._share(event)
            self._emit(
                AuditEvent(
                    actor=event.by or SERVER,
                    action=f"breaker.{event.after}",
                    subject=f"{event.proposer} {event.traffic_class}",
                    after=asdict(event),
                )
            )
        self._disable(breakers.disabled())

    def _share(self, event: BreakerEvent) -> None:
        """Tell other replicas of a breaker that opened here by itself."""
        opened = (event.before, event.after) == ("closed", "open") and event.reason not in ("shared", "operator")
        if opened and self._shared is not None:
            value = str(_Opened(self._replica, time.time(), frozenset(event.tenants)))
            self._shared.set(OPENED, f"{event.proposer} {event.traffic_class}", value)


@dataclass(frozen=True, slots=True)
class _Opened:
    """Where and when (Unix time) a breaker opened, and for which tenants; none: for all. As text it has one space."""

    replica: str
    at: float
    tenants: frozenset[str]

    def __str__(self) -> str:
        tenants = f":{','.join(quote(tenant, safe='') for tenant in sorted(self.tenants))}" if self.tenants else ""
        return f"{self.replica}{tenants} {self.at:.3f}"

    @classmethod
    def read(cls, text: str) -> Self:
        where, _, at = text.partition(" ")
        replica, has_tenants, tenants = where.partition(":")
        return cls(replica, float(at), frozenset(map(unquote, tenants.split(","))) if has_tenants else frozenset())


class BreakerBody(Body):
    """The breaker to set, and its new state."""

    proposer: Annotated[str, Field(max_length=64)]
    traffic_class: Annotated[str, Field(pattern=TRAFFIC_CLASS)]
    state: OperatorState


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReply(BreakerFigures):
    """A breaker now, with its figures."""

    state: State
    reason: TripReason | Literal["operator"] | None
    """Why it is in its state; null where it is closed."""
    by: str
    """The operator who set its state; empty: it decides itself."""
    probed_in_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSetReply(BreakerReply):
    not_saved: str | None
    """Reason why the state holds only until the server ends."""


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
        breaker, fault = feature.set((body.proposer, body.traffic_class), body.state, caller.actor)
        return BreakerSetReply(**asdict(feature.shown_one(breaker)), not_saved=fault or None)

    return routes.all
