"""Sends traces from a thread of its own: requests never wait for it, its memory is bounded, and losses are counted."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.telemetry.declare import counter
from prolepsis.tracing.keep import Kept
from prolepsis.tracing.spans import Span

log = structlog.get_logger(__name__)

Loss = Literal[
    "over_budget",  # errors and fallbacks beyond the budget for them
    "queue_full",
    "not_made",  # a fault of ours
    "not_sent",  # the receiver could not be reached, or refused
    "closed",  # left when the server ended
]
Pending = Callable[[], Sequence[Span]]
"""Makes the spans of a trace."""


class Sender(Protocol):
    """Sends spans somewhere; called from one thread, except for `close`."""

    def send(self, spans: Sequence[Span]) -> bool:
        """Return whether they arrived."""

    def close(self) -> None:
        """End a call of `send` that is still trying."""


class TraceMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.kept = counter(registry, "traces", "Traces that were to be sent, by why they are kept", "reason", most=4)
        self.lost = counter(
            registry, "traces_lost", "Traces that were not sent though they were to be", "reason", most=5
        )
        self.spans = counter(registry, "trace_spans_sent", "Spans that arrived at the receiver")
        for kept in get_args(Kept):
            self.kept.labels(kept)
        for reason in get_args(Loss):
            self.lost.labels(reason)  # an alert on a rise needs the 0 before it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExporterSettings:
    max_queued: int = 256
    """Traces; further ones are lost."""
    max_batch: int = 64
    linger_s: float = 1.0
    """How long the first trace of a batch waits for others."""


class TraceExporter:
    """A bounded queue and a thread that empties it; the thread starts with the first trace."""

    def __init__(self, sender: Sender, metrics: TraceMetrics, settings: ExporterSettings | None = None) -> None:
        self._sender = sender
        self._metrics = metrics
        self._settings = settings or ExporterSettings()
        self._changed = threading.Condition()
        self._queue: deque[Pending] = deque()
        self._closing = False
        self._failing = False
        self._thread: threading.Thread | None = None

    def offer(self, trace: Pending) -> None:
        """Queue a trace, or count it as lost. Never waits for the receiver."""
        with self._changed:
            if not self._closing and len(self._queue) < self._settings.max_queued:
                self._queue.append(trace)
                self._changed.notify_all()
                self._start()
                return
        self.lose("closed" if self._closing else "queue_full")

    def lose(self, reason: Loss, number: int = 1) -> None:
        """Count traces that will not be sent."""
        if number:
            self._metrics.lost.labels(reason).inc(number)

    def close(self, timeout_s: float = 3.0) -> None:
        """Send what waits within the time, count the rest as lost, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(timeout_s)
        with self._changed:
            self.lose("closed", len(self._queue))
            self._queue.clear()
        self._sender.close()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="trace-exporter", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while batch := self._take():
            self._send(batch)

    def _take(self) -> list[Pending]:
        """Wait for traces and return a batch of them; empty at the end."""
        settings = self._settings
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            self._changed.wait_for(lambda: len(self._queue) >= settings.max_batch or self._closing, settings.linger_s)
            return [self._queue.popleft() for _ in range(min(len(self._queue), settings.max_batch))]

    def _send(self, batch: Sequence[Pending]) -> None:
        made = [spans for trace in batch if (spans := self._made(trace))]
        spans = [span for trace in made for span in trace]
        try:
            arrived = self._sender.send(spans)
        except Exception:  # contained: spans that cannot be sent do not stop the next ones
            log.exception("traces_failed")
            arrived = False
        if arrived:
            self._metrics.spans.inc(len(spans))
        else:
            self.lose("not_sent", len(made))
        if arrived == self._failing:
            self._failing = not arrived
            (log.info if arrived else log.warning)("traces_arrive_again" if arrived else "traces_do_not_arrive")

    def _made(self, trace: Pending) -> Sequence[Span]:
        """Return the spans of a trace; one that cannot be made is lost alone."""
        try:
            return trace()
        except Exception:  # contained: the others are sent
            log.exception("trace_failed")
            self.lose("not_made")
            return ()
