"""What browsers, probes and proxies expect of HTTP apart from the routes: other origins, HEAD and OPTIONS."""

from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.core.errors import ConfigError
from prolepsis.server.front.sign_in import RouteRules

ANY_ORIGIN = "*"
PREFLIGHT_AGE_S = 600
SHOWN_HEADERS = (
    *("x-request-id", "x-spec-effective", "x-seed", "x-exactness", "x-quality", "retry-after", "warning"),
    *("x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    *("x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
)
"""Headers of answers that scripts of other origins may read."""


def check_origins(origins: Sequence[str], *, keys_required: bool) -> None:
    """Raise `ConfigError` where any page in a browser could use a server that asks for no key."""
    if ANY_ORIGIN in origins and not keys_required:
        message = "allow_origin is *, and no key is asked for; allowed: origins you trust, or * with a key file"
        raise ConfigError(message, param="allow_origin")


class OtherOriginsMiddleware(CORSMiddleware):
    """Lets scripts of these origins call the server; they send no cookies, a key is in a header."""

    def __init__(self, app: ASGIApp, *, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=("GET", "POST", "PUT", "DELETE"),
            allow_headers=("*",),
            expose_headers=SHOWN_HEADERS,
            max_age=PREFLIGHT_AGE_S,
        )


class MethodsMiddleware:
    """ASGI middleware: answers OPTIONS for every declared path, and HEAD as GET without the body."""

    def __init__(self, app: ASGIApp, *, rules: RouteRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rule = self._rules.of(scope["path"]) if scope["type"] == "http" else None
        methods = set(rule.roles) if rule is not None else set()
        if rule is not None and scope["method"] == "OPTIONS":
            methods |= {"OPTIONS", *(("HEAD",) if "GET" in methods else ())}
            await Response(status_code=204, headers={"allow": ", ".join(sorted(methods))})(scope, receive, send)
        elif rule is not None and scope["method"] == "HEAD" and "HEAD" not in methods and "GET" in methods:
            await self._app({**scope, "method": "GET"}, *_without_body(receive, send))
        else:
            await self._app(scope, receive, send)


def _without_body(receive: Receive, send: Send) -> tuple[Receive, Send]:
    """Return the ends of a connection on which an answer stops behind its headers: a stream would go on for ever."""
    ended = False

    async def receive_end() -> Message:
        return {"type": "http.disconnect"} if ended else await receive()

    async def send_head(message: Message) -> None:
        nonlocal ended
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            ended = True

    return receive_end, send_head
