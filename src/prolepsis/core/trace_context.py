"""A position in a distributed trace, from W3C's `traceparent` header."""

import re
import secrets
from dataclasses import dataclass

HEADER = "traceparent"
_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A span of a trace: https://www.w3.org/TR/trace-context/, version 00."""

    trace_id: str  # 32 hexadecimal digits, not all zero
    span_id: str  # 16 hexadecimal digits, not all zero
    sampled: bool
    parent_id: str = ""
    """The span that it belongs to; empty: it is the first of its trace, or its parent is not known."""

    def child(self) -> "TraceContext":
        """Return a new span below this one."""
        return TraceContext(self.trace_id, _new_id(64), self.sampled, parent_id=self.span_id)

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.sampled:02x}"


def new_trace_id() -> str:
    return _new_id(128)


def first_span(trace_id: str, *, sampled: bool) -> TraceContext:
    return TraceContext(trace_id, _new_id(64), sampled)


def parse_traceparent(value: str) -> TraceContext | None:
    """Read a `traceparent` header; None for one that the standard says to ignore.

    Of versions after 00 the known beginning is read; version ff and ids of zeros only are invalid.
    """
    match = _FORM.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, sampled=bool(int(flags, 16) & 1))


def _new_id(num_bits: int) -> str:
    return f"{secrets.randbits(num_bits) or 1:0{num_bits // 4}x}"
