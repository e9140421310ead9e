"""The sender of a generation request, and what the request says outside its body."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from starlette.requests import Request

from prolepsis.api.tracing import HTTP_REQUEST_ID, TRACE_ID
from prolepsis.web.caller import Caller, caller_of

SPEC_MODE = "x-spec-mode"


@dataclass(frozen=True, slots=True)
class RequestContext:
    """Caller, route and headers of one request."""

    caller: Caller
    route: str = ""
    """Path of the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; the first of equal names."""
    http_request_id: str = ""
    trace_id: str = ""

    @property
    def spec_mode(self) -> str | None:
        return self.headers.get(SPEC_MODE)


def context_of(request: Request) -> RequestContext:
    """Read it from a request that sign-in let through."""
    names = {name: request.scope["state"].get(name, "") for name in (HTTP_REQUEST_ID, TRACE_ID)}
    return RequestContext(caller_of(request), request.scope["path"], dict(request.headers), **names)
