"""Gives each HTTP request an id and a place in a trace, counts it, and writes one log line about it."""

import re
import time
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bound_contextvars

from prolepsis.control.web.errors import error_response
from prolepsis.core.telemetry.logs import FewLines
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.core.trace_context import HEADER, parse_traceparent
from prolepsis.ops.tracing.traces import Traces

log = structlog.get_logger(__name__)

HTTP_REQUEST_ID, ANSWER_ID = "http_request_id", "answer_id"
"""Names of a request in its scope's state."""
ARRIVED, TRACE = "arrived", "trace"
"""In the same place: when a request arrived (`time.monotonic`), and its `TraceContext`, if it has one."""
ANNOUNCED = "announced"
"""In the same place: its end was announced to the features."""
FAILED = "failed"
"""In the same place: it failed, maybe in a stream whose status says nothing of that."""
_ACCEPTED = re.compile(r"[\x21-\x7e]{1,128}")
_QUIET = {"/metrics", "/health", "/health/live", "/health/ready", "/v1/verify/{stream_id}/drafts"}
_NOT_SENT = 499
"""Counted where the client left before any status was sent."""


class RequestMiddleware:
    """ASGI middleware: gives a request its id and its place in a trace, and accounts for it when it has ended.

    `x-request-id` goes out as it came in, or is made up where it is missing or unfit. A request carries a trace, or
    `tracing` begins one: its log lines then name it, and the response returns it. Of requests without a known caller,
    a few lines a minute of each status are written.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, tracing: Traces) -> None:
        self._app = app
        self._metrics = metrics
        self._tracing = tracing
        self._strangers = FewLines()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers, state = Headers(scope=scope), scope.setdefault("state", {})
        state[ARRIVED] = time.monotonic()
        given, traces = headers.get("x-request-id", ""), headers.getlist(HEADER)
        request_id = state[HTTP_REQUEST_ID] = given if _ACCEPTED.fullmatch(given) else f"req-{uuid4().hex}"
        own = self._tracing.begin(parse_traceparent(traces[0]) if len(traces) == 1 else None)
        status, added, names = _NOT_SENT, {"x-request-id": request_id}, {}
        if own is not None:
            state[TRACE], added[HEADER] = own, own.header()
            names = {"trace_id": own.trace_id, "span_id": own.span_id}

        async def send_with_names(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(added)
            await send(message)

        with bound_contextvars(**names):
            try:
                await self._app(scope, receive, send_with_names)
            except Exception as error:  # the HTTP edge: an error that escaped a route becomes one reply
                if status != _NOT_SENT:
                    raise
                await error_response(error, scope)(scope, receive, send_with_names)
            finally:
                self._account(scope, status)
        # a request that is answered is traced when its answer ends; it may continue without its client
        is_answered = state.get(ANNOUNCED) or (ANSWER_ID in state and status in (200, _NOT_SENT))
        if own is not None and not is_answered and (route := _route(scope)) not in _QUIET:
            self._tracing.on_http_end(own, (scope["method"], route), status, state[ARRIVED])

    def _account(self, scope: Scope, status: int) -> None:
        state, route = scope["state"], _route(scope)
        self._metrics.http_request_ended(route, status)
        left_out = self._strangers.take(status) if "caller" not in state and route not in _QUIET else 0
        if route in _QUIET or left_out is None:
            return
        more = {ANSWER_ID: state[ANSWER_ID]} if ANSWER_ID in state else {}
        more |= {"left_out": left_out} if left_out else {}
        ms = round((time.monotonic() - state[ARRIVED]) * 1000, 1)
        log.info("http_request", route=route, status=status, ms=ms, request_id=state[HTTP_REQUEST_ID], **more)


def _route(scope: Scope) -> str:
    """Return the pattern of the route that was called, never the path as given."""
    path: str | None = getattr(scope.get("route"), "path", None)
    return path or str(scope.get("state", {}).get("rule", "unknown"))


def behind_repeating_proxy(app: ASGIApp) -> ASGIApp:
    """Return the app for a proxy that repeats a request's `x-request-id` itself: the response has it once."""

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        given = Headers(scope=scope).get("x-request-id") if scope["type"] == "http" else None

        async def send_without_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("x-request-id") == given:  # one that is unfit was replaced, and the log has the new one
                    del headers["x-request-id"]
            await send(message)

        await app(scope, receive, send if given is None else send_without_id)

    return served
