"""Breakers while serving: the plan leaves out the proposers that they disable, and operators set them."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import get_args
from uuid import uuid4

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.controls.controls import Controls, Origin
from prolepsis.control.health.breaker import (
    STATES,
    Breaker,
    BreakerEvent,
    BreakerFigures,
    Breakers,
    Key,
    OperatorState,
    State,
    TripReason,
    Why,
)
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.plan import DisabledProposer
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.core.telemetry.declare import counter, gauge

OVERRIDDEN, OPENED = "breaker", "breaker_opened"
"""Kinds of controls: breakers that operators set, and breakers that opened by themselves."""
NEWS_S = 60.0  # a breaker that opened on another replica longer ago is left to judge by itself
_QUIET = ("backoff_elapsed", "recovered", "operator", "replaced")  # reasons that are not logged as warnings

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerReply(BreakerFigures):
    state: State
    reason: Why  # why it is in its state; null where it is closed
    by: str  # the operator who set its state; empty: it decides itself
    probed_in_s: float | None


@dataclass(frozen=True, slots=True)
class BreakersReply:
    enabled: bool
    breakers: list[BreakerReply]


class BreakerRuntime:
    """Calls `disable` with the proposers that the engine's plan must leave out. Belongs to one event loop."""

    def __init__(
        self,
        breakers: Breakers,
        disable: Callable[[tuple[DisabledProposer, ...]], None],
        registry: CollectorRegistry,
        *,
        controls: Controls,
        enabled: bool = True,
        emit: Emit = discard,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`controls`: what operators set, and what opened on other replicas. `clock` is monotonic, `now` Unix time."""
        self.breakers = breakers
        self.enabled = enabled
        self._disable = disable
        by = ("proposer", "traffic_class")  # each is one of few
        text = "1 for the state that a breaker is in"
        self._events = counter(
            registry, "breaker_events", "Changes of breakers", *by, "before", "after", "reason", most=160
        )
        self._states = gauge(registry, "breaker_state", text, *by, "state", most=240)
        self._controls = controls
        self._emit = emit
        self._clock = clock
        self._now = now
        self._replica = uuid4().hex
        self._overrides: dict[Key, OperatorState] = {}
        self._opened = controls.shared(OPENED)
        if enabled:
            controls.follow(OVERRIDDEN, self._follow_overrides)
            controls.follow(OPENED, self._follow_opened)

    def shown(self) -> BreakersReply:
        return BreakersReply(
            self.enabled, [self.shown_one(breaker) for _, breaker in sorted(self.breakers.all.items())]
        )

    def shown_one(self, breaker: Breaker) -> BreakerReply:
        probed_in_s = max(0.0, breaker.since + breaker.open_s - self._clock()) if breaker.state == "open" else None
        return BreakerReply(
            state=breaker.state, reason=breaker.why, by=breaker.by, probed_in_s=probed_in_s, **breaker.figures
        )

    def observe(self, counts: Iterable[TrafficClassCounts]) -> None:
        if self.enabled:
            self._report(self.breakers.observe(counts, self._clock()))

    def set(self, key: Key, state: OperatorState, by: str, *, because: str = "") -> tuple[Breaker, str]:
        """Set a breaker for an operator; return it, with an error message if the state could not be saved, else ""."""
        assert self.enabled, "disabled breakers are refused before"
        self._set(key, state, by, because)
        value = None if state == "closed" else state
        fault = self._controls.set(OVERRIDDEN, " ".join(key), value, by=by, reason=because)
        return self.breakers.all[key], fault

    def trip(self, key: Key, reason: TripReason) -> None:
        """Open a breaker for an outside reason."""
        if self.enabled:
            self._report(self.breakers.trip(key, reason, self._clock()))

    def _follow_overrides(self, origin: Origin) -> None:
        """Apply what operators set, and close the breakers that they released."""
        controls, now = self._controls.of(OVERRIDDEN), dict[Key, OperatorState]()
        for name, control in controls.items():
            forced = next((state for state in get_args(OperatorState) if state == control.value), None)
            if forced is None:  # of another version of the software
                log.error("breaker_override_unusable", name=name)
            else:
                now[_key(name)] = forced
        before, self._overrides = self._overrides, now
        sections = self._controls.local(OVERRIDDEN), self._controls.shared(OVERRIDDEN)
        for key in before.keys() - now.keys():
            removed = [section[name] for section in sections if (name := " ".join(key)) in section]
            author = max(removed, key=lambda control: control.at).by if removed else ""
            self._set(key, "closed", author)
        for key, state in now.items():
            control = controls[" ".join(key)]
            self._set(key, state, control.by, control.reason)

    def _follow_opened(self, origin: Origin) -> None:
        """Open the breakers that opened on another replica since the last look; each replica probes for itself."""
        before, self._opened = self._opened, self._controls.shared(OPENED)
        for name, control in self._opened.items():
            is_news = before.get(name) != control and control.by != self._replica
            if is_news and self._now() - control.at < NEWS_S:
                tenants = frozenset[str]()  # for all
                with suppress(ValueError):
                    tenants = frozenset(map(str, json.loads(control.value or "[]")))
                self._report(self.breakers.trip(_key(name), "shared", self._clock(), tenants))

    def _set(self, key: Key, state: OperatorState, by: str, because: str = "") -> None:
        self._report(self.breakers.set(key, state, self._clock(), by), because)

    def _report(self, events: Iterable[BreakerEvent], because: str = "") -> None:
        """Log and audit changes; `because` is the reason that an operator gave."""
        for event in events:
            write = log.info if event.reason in _QUIET else log.warning
            shown = {**asdict(event), "because": because} if because else asdict(event)
            write("breaker", **shown)
            key, name = (event.proposer, event.traffic_class), f"{event.proposer} {event.traffic_class}"
            self._events.labels(*key, event.before, event.after, event.reason).inc()
            for state in STATES:
                self._states.labels(*key, state).set(state == event.after)
            opened = (event.before, event.after) == ("closed", "open") and event.reason not in ("shared", "operator")
            if opened and self._controls.is_shared:  # by itself: the other replicas follow
                self._controls.set(OPENED, name, json.dumps(sorted(event.tenants)), by=self._replica)
            actor, action = event.by or SERVER, f"breaker.{event.after}"
            self._emit(AuditEvent(actor=actor, action=action, subject=name, after=shown))
        self._disable(self.breakers.disabled())


def _key(name: str) -> Key:
    proposer, _, traffic_class = name.partition(" ")
    return proposer, traffic_class
