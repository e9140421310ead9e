"""The sender of a generation request, and what the request says outside its body."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from starlette.requests import Request

from prolepsis.api.tracing import ARRIVED, HTTP_REQUEST_ID, TRACE
from prolepsis.core.requests import SpecMode
from prolepsis.core.trace_context import TraceContext
from prolepsis.web.body_reader import BODY_BYTES
from prolepsis.web.caller import Caller, caller_of

SPEC_MODE = "x-spec-mode"
SPEC_MODE_HEADER = {SPEC_MODE: {"enum": list(get_args(SpecMode))}}
"""Its schema, by its name."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Caller, route and headers of one request."""

    caller: Caller
    route: str = ""
    """Path of the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; the first of equal names."""
    num_bytes: int = 0
    """Size of the body."""
    http_request_id: str = ""
    trace: TraceContext | None = None
    arrived: float = 0.0
    """By `time.monotonic`."""

    @property
    def spec_mode(self) -> str | None:
        return self.headers.get(SPEC_MODE)


def context_of(request: Request) -> RequestContext:
    """Read it from a request that sign-in let through."""
    state = request.scope["state"]
    return RequestContext(
        caller_of(request),
        request.scope["path"],
        dict(request.headers),
        state[BODY_BYTES],
        state.get(HTTP_REQUEST_ID, ""),
        state.get(TRACE),
        state.get(ARRIVED, 0.0),
    )
