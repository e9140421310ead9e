"""Sends spans by OTLP over HTTP with OpenTelemetry's SDK: its batches, encoding, retries and environment variables.

Imported only where traces are on.
"""

import logging
import time
from collections.abc import Sequence
from threading import Thread
from uuid import uuid4

import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags
from prometheus_client import CollectorRegistry

from prolepsis import __version__
from prolepsis.core.engine_client import EngineInfo
from prolepsis.core.telemetry.declare import counter
from prolepsis.ops.tracing.spans import Span

log = structlog.get_logger(__name__)

MAX_QUEUED = 8192  # spans that wait or are being sent; a trace that does not fit is refused as a whole
_LINGER_MS = 1000.0
_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_STATUS = {False: Status(StatusCode.UNSET), True: Status(StatusCode.ERROR)}


class OtlpExporter:
    """Queues spans for a thread of the SDK; callers never wait for the receiver, and losses are counted.

    The SDK's queue drops its oldest spans where it is full. It never is: a trace is refused before.
    """

    def __init__(self, endpoint: str | None, info: EngineInfo, registry: CollectorRegistry) -> None:
        """`endpoint`: full URL; None: the address in OpenTelemetry's environment variables."""
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # failures are counted and logged here
        self._num_offered = 0
        self._exporter = _CountingExporter(endpoint, registry)
        self._processor = BatchSpanProcessor(
            self._exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=_LINGER_MS
        )
        self._resource = _resource(info)
        self._scope = InstrumentationScope("prolepsis", __version__)

    def offer(self, trace: Sequence[Span]) -> bool:
        """Queue a whole trace, or return False where there is no room for it."""
        if self._num_offered - self._exporter.num_taken + len(trace) > MAX_QUEUED:
            return False
        self._num_offered += len(trace)
        offset_ns = time.time_ns() - time.monotonic_ns()
        for span in trace:
            self._processor.on_end(self._readable(span, offset_ns))
        return True

    def close(self, timeout_s: float = 3.0) -> None:
        """Send what waits within the time, and count the rest as not sent."""
        closing = Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(timeout_s)
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # ends the attempts of a send that is under way
        closing.join(timeout_s)
        self._exporter.lost.inc(self._num_offered - self._exporter.num_taken)

    def _readable(self, span: Span, offset_ns: int) -> ReadableSpan:
        trace_id, parent = int(span.trace_id, 16), None
        if span.parent_id:
            parent = SpanContext(trace_id, int(span.parent_id, 16), span.kind == "server", _SAMPLED)
        return ReadableSpan(
            span.name,
            SpanContext(trace_id, int(span.span_id, 16), is_remote=False, trace_flags=_SAMPLED),
            parent,
            self._resource,
            span.attributes,
            kind=_KINDS[span.kind],
            status=_STATUS[span.failed],
            start_time=offset_ns + int(1e9 * span.times[0]),
            end_time=offset_ns + int(1e9 * span.times[1]),
            instrumentation_scope=self._scope,
        )


class _CountingExporter(OTLPSpanExporter):
    """Counts the spans that arrive and those that do not."""

    def __init__(self, endpoint: str | None, registry: CollectorRegistry) -> None:
        super().__init__(endpoint)
        self.num_taken = 0
        """Spans that have left the queue."""
        self._sent = counter(registry, "trace_spans_sent", "Spans that arrived at the receiver")
        self.lost = counter(registry, "trace_spans_lost", "Spans that the receiver did not take, or left at the end")
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.num_taken += len(spans)
        try:
            result = super().export(spans)
        except Exception:  # contained: the next batch may arrive
            log.exception("traces_failed")
            result = SpanExportResult.FAILURE
        arrived = result is SpanExportResult.SUCCESS
        (self._sent if arrived else self.lost).inc(len(spans))
        if arrived == self._failing:
            self._failing = not arrived
            (log.info if arrived else log.warning)("traces_arrive_again" if arrived else "traces_do_not_arrive")
        return result


def _resource(info: EngineInfo) -> Resource:
    """Return the attributes of this server; the environment may replace them."""
    own = {
        "service.name": "prolepsis",
        "service.version": __version__,
        "service.instance.id": str(uuid4()),
        "prolepsis.fingerprint": info.fingerprint,
        "prolepsis.exactness": info.exactness,
    }
    given = OTELResourceDetector().detect().attributes
    return Resource.create({name: value for name, value in own.items() if name not in given})
