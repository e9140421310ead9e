"""Drift while serving: polls the engine's counts, and reports alarms to log, metrics and the audit log."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from prolepsis.core.audit_event import SERVER, AuditEvent, Emit, discard
from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.drift import STATUSES, DriftAlarm, DriftStream, DriftStreams, Key, Status

log = structlog.get_logger(__name__)


class DriftWatch:
    """Belongs to one event loop."""

    def __init__(
        self,
        streams: DriftStreams,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        version_of: Callable[[str], str],
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        on_cliff: Callable[[Key], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`on_cliff` is called with proposer and traffic class of a cliff."""
        self._streams = streams
        self._counts = counts
        self._version_of = version_of
        self._emit = emit
        self._on_cliff = on_cliff
        self._clock = clock
        self._shown: dict[Key, tuple[Status, float | None, float | None]] = {}
        self._metrics = _Metrics(registry)

    @property
    def streams(self) -> Mapping[Key, DriftStream]:
        return self._streams.all

    def poll(self) -> None:
        """Take in the engine's counts."""
        for alarm in self._streams.observe(self._counts(), self._version_of, self._clock()):
            self._report(alarm)
        for key, stream in self.streams.items():
            status, acceptance, overestimated = figures = (stream.status, stream.acceptance, stream.overestimated)
            if self._shown.get(key) != figures:
                self._shown[key] = figures
                self._metrics.show(key, status, acceptance, overestimated)

    def reset(self, key: Key) -> DriftStream:
        """Start a stream again; raises `KeyError` for an unknown one."""
        return self._streams.reset(key, self._clock())

    def seconds_of(self, stream: DriftStream) -> float:
        """Return the age of a stream."""
        return self._clock() - stream.since

    def _report(self, alarm: DriftAlarm) -> None:
        write = {"cliff": log.error, "recovered": log.info}.get(alarm.kind, log.warning)
        write("drift", **asdict(alarm))
        key = (alarm.proposer, alarm.traffic_class)
        self._metrics.alarms.labels(*key, alarm.kind).inc()
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"drift.{alarm.kind}",
                subject=" ".join(key),
                after=asdict(alarm),
                versions={"proposer": alarm.version},
            )
        )
        if alarm.kind == "cliff" and self._on_cliff is not None:
            self._on_cliff(key)


class _Metrics:
    """There are few traffic classes by construction, so they can be labels."""

    def __init__(self, registry: CollectorRegistry) -> None:
        by = ["proposer", "traffic_class"]

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"prolepsis_drift_{name}", text, [*by, *labels], registry=registry)

        text = "Alarms of drift and of cliffs"
        self.alarms = Counter("prolepsis_drift_alarms", text, [*by, "kind"], registry=registry)
        self._status = gauge("status", "1 for the drift status of a proposer", "status")
        self._acceptance = gauge("acceptance", "Acceptance of first drafted tokens since the last change")
        self._overestimated = gauge("overestimated", "Estimated less actual acceptance of first drafted tokens")

    def show(self, key: Key, status: Status, acceptance: float | None, overestimated: float | None) -> None:
        """Show one stream; figures that are None are not known yet."""
        for other in STATUSES:
            self._status.labels(*key, other).set(other == status)
        if acceptance is not None:
            self._acceptance.labels(*key).set(acceptance)
        if overestimated is not None:
            self._overestimated.labels(*key).set(overestimated)
