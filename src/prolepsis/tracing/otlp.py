"""Sends spans by OTLP over HTTP, with OpenTelemetry's SDK: its encoding, retries and environment variables.

This module alone imports the SDK, and is imported only where traces are on.
"""

import logging
import time
from collections.abc import Mapping, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, TraceFlags, set_span_in_context

from prolepsis import __version__
from prolepsis.tracing.spans import Span

_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class OtlpSender:
    """Sends to an address, or where OTEL_EXPORTER_OTLP_ENDPOINT says; `attributes` describe this server."""

    def __init__(self, endpoint: str | None, attributes: Mapping[str, str]) -> None:
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # failures are counted and logged by us
        self._ids = _GivenIds()
        self._ended = _Ended()
        given = OTELResourceDetector().detect().attributes
        resource = Resource.create({name: value for name, value in attributes.items() if name not in given})
        provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, id_generator=self._ids, shutdown_on_exit=False)
        provider.add_span_processor(self._ended)
        self._tracer = provider.get_tracer("prolepsis", __version__)
        self._exporter = OTLPSpanExporter(endpoint)

    def send(self, spans: Sequence[Span]) -> bool:
        """Send spans in one request, with a few tries within OTEL_EXPORTER_OTLP_TIMEOUT (10 s)."""
        offset_ns = time.time_ns() - time.monotonic_ns()
        for span in spans:
            self._add(span, offset_ns)
        return self._exporter.export(self._ended.take()) is SpanExportResult.SUCCESS

    def close(self) -> None:
        self._exporter.shutdown()  # type: ignore[no-untyped-call]

    def _add(self, span: Span, offset_ns: int) -> None:
        self._ids.give(span)
        made = self._tracer.start_span(
            span.name,
            _parent(span),
            _KINDS[span.kind],
            span.attributes,
            start_time=offset_ns + int(1e9 * span.times[0]),
        )
        if span.failed:
            made.set_status(StatusCode.ERROR)
        made.end(offset_ns + int(1e9 * span.times[1]))


def _parent(span: Span) -> Context:
    if not span.parent_id:
        return Context()
    parent = SpanContext(int(span.trace_id, 16), int(span.parent_id, 16), span.kind == "server", _SAMPLED)
    return set_span_in_context(NonRecordingSpan(parent), Context())


class _GivenIds(IdGenerator):
    """The ids of the span that is made next."""

    def __init__(self) -> None:
        self._span_id = self._trace_id = 0

    def give(self, span: Span) -> None:
        self._span_id, self._trace_id = int(span.span_id, 16), int(span.trace_id, 16)

    def generate_span_id(self) -> int:
        return self._span_id

    def generate_trace_id(self) -> int:
        return self._trace_id


class _Ended(SpanProcessor):
    """Collects spans that have ended."""

    def __init__(self) -> None:
        self._spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self._spans.append(span)

    def take(self) -> list[ReadableSpan]:
        taken, self._spans = self._spans, []
        return taken
