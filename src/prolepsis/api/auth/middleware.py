"""Sign-in before every route: sizes, the key and the role; and a bound on slow clients."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.api.admission.metrics import AdmissionMetrics
from prolepsis.api.auth.keys import Keys
from prolepsis.api.connections import is_loopback
from prolepsis.api.stream import ClientDisconnected
from prolepsis.core.config import ServerConfig
from prolepsis.web.caller import Caller
from prolepsis.web.errors import ErrorReply, describe_error
from prolepsis.web.refusals import not_local, too_large, upload_too_slow, wrong_role
from prolepsis.web.routes import Roles, Route


@dataclass(frozen=True, slots=True)
class PathRules:
    """The roles of one path, by method; None: no key is needed."""

    path: str
    """The route's pattern, for logs and counters."""
    roles: Mapping[str, Roles | None]


class RouteRules:
    """The roles that each declared route needs. A path that is not declared has no rules and cannot be reached."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._fixed: dict[str, PathRules] = {}
        self._patterns: dict[re.Pattern[str], PathRules] = {}
        for route in routes:
            roles: dict[str, Roles | None] = dict.fromkeys(route.methods or (), route.roles)
            if route.param_convertors:
                known = self._patterns.get(route.path_regex)
                self._patterns[route.path_regex] = _joined(route.path, known, roles)
            else:
                self._fixed[route.path] = _joined(route.path, self._fixed.get(route.path), roles)

    def of(self, path: str) -> PathRules | None:
        """Return the rules of a path as given; None: there is no such route."""
        if path in self._fixed:
            return self._fixed[path]
        return next((rules for pattern, rules in self._patterns.items() if pattern.match(path)), None)


def _joined(path: str, known: PathRules | None, roles: Mapping[str, Roles | None]) -> PathRules:
    return PathRules(path, {**(known.roles if known else {}), **roles})


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/@]+))(?::\d{0,5})?")


def check_local(headers: Headers) -> None:
    """Raise `Refused` (403) unless a request names a loopback host, and no origin or a loopback one."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not _is_local(hosts[0]):
        raise not_local("Host", ", ".join(hosts))
    if not all(_is_local_origin(origin) for origin in origins):
        raise not_local("Origin", ", ".join(origins))


def _is_local(host: str) -> bool:
    match = _HOST.fullmatch(host.strip().lower())
    return match is not None and is_loopback(match[1] or match[2])


def _is_local_origin(origin: str) -> bool:
    scheme, separator, host = origin.strip().lower().partition("://")
    return scheme in ("http", "https") and bool(separator) and _is_local(host)


REPLY_HEADERS = "reply_headers"


def reply_headers(http: HTTPConnection) -> dict[str, str]:
    """Return the mapping to fill before the reply starts; `AuthMiddleware` sends it."""
    headers: dict[str, str] = http.scope["state"].setdefault(REPLY_HEADERS, {})
    return headers


MAX_HEADERS = 128


class AuthMiddleware:
    """ASGI middleware. A path that is not declared is answered with 404 here: no such route can be reached.

    Sets `scope["state"]["caller"]`, and sends the headers that the gate leaves in `scope["state"]`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        config: ServerConfig,
        metrics: AdmissionMetrics,
        routes: Sequence[Route],
    ) -> None:
        self._app = app
        self._keys = keys
        self._config = config
        self._metrics = metrics
        self._rules = RouteRules(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no route for it
            await send({"type": "websocket.close", "code": 1008})
            return
        state = scope.setdefault("state", {})
        try:
            refusal = await self._check(scope)
        except Exception as error:  # the HTTP edge: every failure becomes one reply
            self._metrics.refuse(error)
            refusal = describe_error(error)
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        state[REPLY_HEADERS] = {}
        receiver = _Receiver(receive, self._config.upload_timeout_s)
        with suppress(ClientDisconnected):  # it took nothing for too long: there is no reader any more
            await self._app(scope, receiver, _Sender(scope, send, self._config.write_timeout_s))

    async def _check(self, scope: Scope) -> ErrorReply | None:
        """Return the reply to what is not there, None where the route may run; raises `Refused`."""
        headers = Headers(scope=scope)
        self._check_sizes(scope, headers)
        rule = self._rules.of(scope["path"])
        if rule is not None:
            scope["state"]["rule"] = rule.path
        roles = rule.roles.get(scope["method"]) if rule else None
        if rule is not None and scope["method"] in rule.roles and roles is None:
            return None
        caller = await self._keys.caller(headers.get("authorization"))
        if not self._keys.required:
            check_local(headers)
        if rule is None or scope["method"] not in rule.roles:
            return _not_there(scope, rule)
        self._check_role(caller, roles)
        scope["state"]["caller"] = caller
        return None

    def _check_sizes(self, scope: Scope, headers: Headers) -> None:
        raw = scope["headers"]
        limit = self._config.max_header_bytes
        size = sum(len(name) + len(value) for name, value in raw) + len(scope["raw_path"]) + len(scope["query_string"])
        if size > limit or len(raw) > MAX_HEADERS:
            raise too_large("headers", f"{limit} bytes or {MAX_HEADERS} fields")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > self._config.max_body_bytes:
            raise too_large("body", f"{self._config.max_body_bytes} bytes")

    @staticmethod
    def _check_role(caller: Caller, roles: Roles | None) -> None:
        if roles is not None and not any(caller.has(role) for role in roles):
            raise wrong_role(caller.roles, roles)


class _Receiver:
    """Gives up on an upload that takes too long; once the body is whole it only waits for the client to leave."""

    def __init__(self, receive: Receive, timeout_s: float) -> None:
        self._receive = receive
        self._end = asyncio.get_running_loop().time() + timeout_s
        self._timeout_s = timeout_s
        self._whole = False

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._end):
                message = await self._receive()
        except TimeoutError:
            raise upload_too_slow(self._timeout_s) from None
        self._whole = not message.get("more_body", False)
        return message


class _Sender:
    """Adds the gate's headers, and gives up on a client that takes nothing for too long."""

    def __init__(self, scope: Scope, send: Send, timeout_s: float) -> None:
        self._scope = scope
        self._send = send
        self._timeout_s = timeout_s
        self._stalled = False

    async def __call__(self, message: Message) -> None:
        if self._stalled:
            raise ClientDisconnected
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(self._scope["state"].get(REPLY_HEADERS, {}))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self._stalled = True
            raise ClientDisconnected from None


def _not_there(scope: Scope, rule: PathRules | None) -> ErrorReply:
    what = f"{scope['method']} {scope['path'][:200]}"
    if rule is None:
        return ErrorReply(404, f"No route {what}", "unknown_url")
    allowed = ", ".join(sorted(rule.roles))
    return ErrorReply(405, f"Method not allowed for {what}", "method_not_allowed", headers={"allow": allowed})
