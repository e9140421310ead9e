"""Drift and benefits while serving: alarms go to log, metrics and the audit log."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.health.benefit import Benefits
from prolepsis.control.health.drift import STATUSES, DriftAlarm, DriftStreams, Key, Status
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.ended import RequestEnded
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.core.telemetry.declare import counter, gauge

_NUMBERS = (
    ("acceptance", "Usual acceptance of first drafted tokens"),
    ("overestimated", "Estimated less actual acceptance of first drafted tokens, lately"),
    ("total_variation", "Least distance of the proposer's next-token distribution from the target's"),
    ("benefit", "Share of the answers' tokens that the proposer usually brings"),
)
"""Gauges of a stream."""

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStreamReply:
    """One proposer in one traffic class since its version was deployed; null: not known yet."""

    proposer: str
    traffic_class: str
    version: str
    status: Status
    acceptance: float | None  # acceptance of first drafted tokens since the last change
    recent_acceptance: float | None  # over the window in which cliffs are detected
    overestimated: float | None  # the proposer's recent estimate for its first token less the actual acceptance
    total_variation: float | None
    """A lower bound of the mean distance of its next-token distribution from the target's, 0 to 1."""
    benefit: float | None  # share of the answers' tokens that it usually brings
    num_judged: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReply:
    enabled: bool
    streams: list[DriftStreamReply]


class DriftRuntime:
    """Belongs to one event loop."""

    def __init__(
        self,
        streams: DriftStreams,
        registry: CollectorRegistry,
        *,
        enabled: bool = True,
        emit: Emit = discard,
        on_cliff: Callable[[Key], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_cliff` is called with proposer and traffic class of a cliff."""
        self.enabled = enabled
        self.streams = streams
        self.benefits = Benefits()
        self._emit = emit
        self._on_cliff = on_cliff
        self._clock = clock
        self._shown: dict[Key, tuple[Status, *tuple[float | None, ...]]] = {}
        by = ("proposer", "traffic_class")  # each is one of few
        self._alarms = counter(registry, "drift_alarms", "Alarms of drift and of cliffs", *by, "kind", most=200)
        status = "1 for the drift status of a proposer"
        self._statuses = gauge(registry, "drift_status", status, *by, "status", most=320)
        gone = "1 while a proposer brings less than half of what it brought, by at least 20 requests of 15 minutes"
        self._gone = gauge(registry, "drift_benefit_gone", gone, *by, most=80)
        self._numbers = [gauge(registry, f"drift_{name}", text, *by, most=80) for name, text in _NUMBERS]

    def see(self, ended: RequestEnded) -> None:
        """Process the first judged drafts of a request that ended, and what its drafts brought."""
        if self.enabled:
            now = self._clock()
            self._report([*self.streams.see(ended, now), *self.benefits.see(ended, now)])

    def observe(self, counts: Iterable[TrafficClassCounts]) -> None:
        if not self.enabled:
            return
        self._report(self.streams.observe(counts, self._clock()))
        for key, stream in self.streams.all.items():
            numbers = (stream.acceptance, stream.overestimated, stream.total_variation, self.benefits.share(key))
            if self._shown.get(key) != (stream.status, *numbers):
                self._shown[key] = (stream.status, *numbers)
                for status in STATUSES:
                    self._statuses.labels(*key, status).set(status == stream.status)
                for shown, number in zip(self._numbers, numbers, strict=True):
                    if number is not None:
                        shown.labels(*key).set(number)
        for key, is_gone in self.gone.items():
            self._gone.labels(*key).set(is_gone)

    @property
    def gone(self) -> Mapping[Key, bool]:
        """Whether the benefit of a proposer in a traffic class is gone."""
        return self.benefits.gone(self._clock())

    def reset(self, key: Key, by: str) -> DriftStreamReply | None:
        """Start a stream again for an operator, with its benefit; return it, None for an unknown one."""
        if key not in self.streams.all:
            return None
        before = self._shown_one(key)
        self.streams.reset(key, self._clock())
        self.benefits.forget(key)
        self._emit(AuditEvent(actor=by, action="drift.reset", subject=" ".join(key), before=asdict(before)))
        return self._shown_one(key)

    def shown(self) -> DriftReply:
        """All streams, for people."""
        return DriftReply(enabled=self.enabled, streams=[self._shown_one(key) for key in sorted(self.streams.all)])

    def _shown_one(self, key: Key) -> DriftStreamReply:
        stream = self.streams.all[key]
        return DriftStreamReply(
            proposer=key[0],
            traffic_class=key[1],
            version=stream.version,
            status=stream.status,
            acceptance=stream.acceptance,
            recent_acceptance=stream.recent_acceptance,
            overestimated=stream.overestimated,
            total_variation=stream.total_variation,
            benefit=self.benefits.share(key),
            num_judged=stream.num_judged,
            seconds=round(self._clock() - stream.since, 1),
        )

    def _report(self, alarms: Iterable[DriftAlarm]) -> None:
        for alarm in alarms:
            write = {"cliff": log.error, "recovered": log.info}.get(alarm.kind, log.warning)
            write("drift", **asdict(alarm))
            key, versions = (alarm.proposer, alarm.traffic_class), {"proposer": alarm.version}
            self._alarms.labels(*key, alarm.kind).inc()
            action, subject = f"drift.{alarm.kind}", " ".join(key)
            self._emit(AuditEvent(actor=SERVER, action=action, subject=subject, after=asdict(alarm), versions=versions))
            if alarm.kind == "cliff" and self._on_cliff is not None:
                self._on_cliff(key)
