"""A receiver of OTLP over HTTP, as a collector is one, that keeps the spans it is sent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from gzip import decompress

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from prolepsis.ops.tracing import spans
from tests.loopback import Reply, Request, serving

Value = str | bool | int | float | list["Value"]


@dataclass(frozen=True, slots=True)
class ReceivedSpan:
    """Ids in hexadecimal, times in nanoseconds since 1970."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: str
    began: int
    ended: int
    attributes: Mapping[str, Value]
    failed: bool


@dataclass(slots=True)
class Receiver:
    url: str = ""
    status: int = 200
    """What it answers."""
    spans: list[ReceivedSpan] = field(default_factory=list)
    resource: dict[str, Value] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = b""
    """All bodies, uncompressed, one after the other."""

    def take(self, request: Request) -> Reply:
        self.paths.append(request.path)
        self.headers = request.headers
        whole = decompress(request.body) if self.headers.get("content-encoding") == "gzip" else request.body
        self.raw += whole
        for one in ExportTraceServiceRequest.FromString(whole).resource_spans:
            self.resource |= _attributes(one.resource.attributes)
            self.spans += [_received(span) for scope in one.scope_spans for span in scope.spans]
        return Reply(self.status)

    def trace(self, trace_id: str) -> list[ReceivedSpan]:
        """Return the spans of a trace, in the order of their beginnings."""
        return sorted((span for span in self.spans if span.trace_id == trace_id), key=lambda span: span.began)


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    with serving(receiver.take) as receiver.url:
        yield receiver


def tree(found: Sequence[spans.Span] | Sequence[ReceivedSpan]) -> dict[str, list[str]]:
    """Return the names of the spans below each span, in order, by its name; of a span that is not here by its id."""
    names = {span.span_id: span.name for span in found}
    assert len(names) == len(found), "ids differ"
    below: dict[str, list[str]] = {}
    for span in found:
        below.setdefault(names.get(span.parent_id, span.parent_id), []).append(span.name)
    return below


def _received(span: Span) -> ReceivedSpan:
    return ReceivedSpan(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _attributes(span.attributes),
        span.status.code == Status.STATUS_CODE_ERROR,
    )


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Value]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Value:
    if value.HasField("array_value"):
        return [_value(one) for one in value.array_value.values]
    found: Value = getattr(value, str(value.WhichOneof("value")))
    return found
