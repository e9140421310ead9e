"""W3C trace context: a request's `traceparent` is shown in log lines and returned with a span of our own."""

import re
import secrets
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_HEADER = "traceparent"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A place in a trace: https://www.w3.org/TR/trace-context/, version 00."""

    trace_id: str
    """32 hexadecimal digits, not all zero."""
    span_id: str
    """16 hexadecimal digits, not all zero."""
    flags: str

    def child(self) -> "TraceContext":
        """Return a new span of the same trace."""
        span = secrets.randbits(64) or 1
        return TraceContext(self.trace_id, f"{span:016x}", self.flags)

    def header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def parse_traceparent(value: str) -> TraceContext | None:
    """Read a `traceparent` header; None for one that the standard tells to ignore.

    Of versions after 00 the known beginning is read; version ff and ids of zeros only are invalid.
    """
    match = _FORM.fullmatch(value.strip())
    if match is None:
        return None
    version, trace_id, span_id, flags, rest = match.groups()
    if version == "ff" or (version == "00" and rest) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, f"{int(flags, 16) & 1:02x}")


class Traces:
    """ASGI middleware: where a request carries a trace, its log lines name it and the response returns it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).getlist(_HEADER) if scope["type"] == "http" else []
        context = parse_traceparent(given[0]) if len(given) == 1 else None
        if context is None:
            await self._app(scope, receive, send)
            return
        own = context.child()

        async def send_with_trace(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[_HEADER] = own.header()
            await send(message)

        with bound_contextvars(trace_id=own.trace_id, span_id=own.span_id):
            await self._app(scope, receive, send_with_trace)
