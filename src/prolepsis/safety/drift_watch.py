"""Drift while serving: the engine's counts, looked at beside breakers and never by the engine."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict

import structlog

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.drift import DriftAlarm, DriftBoard, Key, Status, Stream
from prolepsis.telemetry.control import ControlMetrics

log = structlog.get_logger(__name__)


class DriftWatch:
    """Tells of alarms. Belongs to one event loop."""

    def __init__(
        self,
        board: DriftBoard,
        counts: Callable[[], Iterable[TrafficClassCounts]],
        version_of: Callable[[str], str],
        metrics: ControlMetrics,
        *,
        tell: Callable[[DriftAlarm], None],
        on_cliff: Callable[[str, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tell` hears of every alarm, beside log and metrics; `on_cliff` of proposer and traffic class of a cliff."""
        self._board = board
        self._counts = counts
        self._version_of = version_of
        self._metrics = metrics
        self._tell = tell
        self._on_cliff = on_cliff
        self._clock = clock
        self._shown: dict[Key, tuple[Status, float | None, float | None]] = {}

    @property
    def streams(self) -> Mapping[Key, Stream]:
        return self._board.streams

    def look(self) -> None:
        """Take in what the engine counted."""
        for alarm in self._board.observe(self._counts(), self._version_of, self._clock()):
            self._follow(alarm)
        for key, stream in self._board.streams.items():
            status, acceptance, overestimated = figures = (stream.status, stream.acceptance, stream.overestimated)
            if self._shown.get(key) != figures:
                self._shown[key] = figures
                self._metrics.drift(*key, status, acceptance, overestimated)

    def reset(self, proposer: str, traffic_class: str) -> Stream:
        """Begin one anew; raises `KeyError` where nothing is known of it."""
        return self._board.reset(proposer, traffic_class, self._clock())

    def seconds_of(self, stream: Stream) -> float:
        """Return for how long a stream has been watched."""
        return self._clock() - stream.since

    def _follow(self, alarm: DriftAlarm) -> None:
        say = {"cliff": log.error, "recovered": log.info}.get(alarm.kind, log.warning)
        say("drift", **asdict(alarm))
        self._metrics.drift_alarms.labels(alarm.proposer, alarm.traffic_class, alarm.kind).inc()
        self._tell(alarm)
        if alarm.kind == "cliff" and self._on_cliff is not None:
            self._on_cliff(alarm.proposer, alarm.traffic_class)
