"""Gives each HTTP request an id, counts it, and writes one log line about it."""

import re
import time
from uuid import uuid4

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.server.errors import describe_error
from prolepsis.telemetry.metrics import Metrics

_ACCEPTED = re.compile(r"[\x21-\x7e]{1,128}")
_QUIET = {"/metrics", "/health", "/health/live", "/health/ready"}
_NOT_SENT = 499
"""Counted where the client left before any status was sent."""

log = structlog.get_logger(__name__)


class RequestIds:
    """ASGI middleware: `x-request-id` goes out as it came in, or is made up where it is missing or unfit."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _ACCEPTED.fullmatch(given) else f"req-{uuid4().hex}"
        status, started = _NOT_SENT, time.perf_counter()

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = request_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception as error:  # the HTTP edge: whatever escaped a route becomes one reply
            if status != _NOT_SENT:
                raise
            await describe_error(error).response()(scope, receive, send_with_id)
        finally:
            self._account(scope, request_id, status, time.perf_counter() - started)

    def _account(self, scope: Scope, request_id: str, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", None) or scope.get("state", {}).get("rule", "unknown")
        self._metrics.http_request_ended(route, status)
        if route not in _QUIET:
            log.info("http_request", route=route, status=status, ms=round(seconds * 1000, 1), request_id=request_id)
