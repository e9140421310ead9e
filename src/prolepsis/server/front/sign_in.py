"""Sign-in before every route: sizes, the key and the role; and a bound on slow clients."""

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.control.web.errors import ERROR_SHAPE, OPENAI_ERRORS, ErrorShape, RequestRefused, error_response
from prolepsis.control.web.intake import Intake
from prolepsis.control.web.refusals import not_local, too_large, unknown_url, upload_too_slow, wrong_role
from prolepsis.control.web.reply_headers import REPLY_HEADERS
from prolepsis.control.web.routes import OPEN, Roles, Route
from prolepsis.core.config import ServerConfig
from prolepsis.core.stored_text import UNSTORABLE
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.listener import is_loopback


@dataclass(slots=True)
class PathRules:
    """The roles of one path, by method; None: no key is needed. What it refuses has the shape of its errors."""

    path: str  # the route's pattern, for logs and counters
    pattern: re.Pattern[str]
    errors: ErrorShape = OPENAI_ERRORS
    roles: dict[str, Roles | None] = field(default_factory=dict)
    most_bytes: int = 0  # largest body, where a route of the path takes a larger one than all others


class RouteRules:
    """The roles that each declared route needs. A path that is not declared has no rules and cannot be reached."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_path: dict[str, PathRules] = {}
        for route in routes:
            rules = self._by_path.setdefault(route.path, PathRules(route.path, route.path_regex, route.error_shape))
            rules.roles.update(dict.fromkeys(route.methods or (), route.roles))
            rules.most_bytes = max(rules.most_bytes, route.most_bytes or 0)
        self._patterns = [rules for path, rules in self._by_path.items() if "{" in path]

    def of(self, path: str) -> PathRules | None:
        """Return the rules of a path as given; None: there is no such route."""
        found = self._by_path.get(path)
        return found or next((rules for rules in self._patterns if rules.pattern.match(path)), None)


_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]/@]+))(?::\d{0,5})?")


def is_local(headers: Headers) -> bool:
    """Return whether a request names a loopback host, and no origin or a loopback one."""
    try:
        check_local(headers)
    except RequestRefused:
        return False
    return True


def check_local(headers: Headers, allowed: Sequence[str] = ()) -> None:
    """Raise `Refused` (403) unless a request names a loopback host, and no origin, a loopback or an `allowed` one."""
    hosts, origins = headers.getlist("host"), headers.getlist("origin")
    if len(hosts) != 1 or not _is_local(hosts[0]):
        raise not_local("Host", ", ".join(hosts))
    for origin in origins:
        scheme, _, host = origin.strip().lower().partition("://")
        if origin not in allowed and not (scheme in ("http", "https") and _is_local(host)):
            raise not_local("Origin", ", ".join(origins))


def _is_local(host: str) -> bool:
    match = _HOST.fullmatch(host.strip().lower())
    return match is not None and is_loopback(match[1] or match[2])


def _is_for_clients(rule: PathRules) -> bool:
    """Return whether a path is one that generates or lists models: other origins get no further without a key."""
    return all(roles is not None and "client" in roles for roles in rule.roles.values())


MAX_HEADERS = 128


class AuthMiddleware:
    """ASGI middleware. A path that is not declared is answered with 404 here: no such route can be reached.

    Requests continue one per round of the event loop, tenant after tenant; those that are refused share a turn.
    Sets `scope["state"]["caller"]`, and sends the headers that the gate leaves in `scope["state"]`.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: Keys,
        config: ServerConfig,
        metrics: AdmissionMetrics,
        intake: Intake,
        rules: RouteRules,
    ) -> None:
        self._app = app
        self._keys = keys
        self._config = config
        self._metrics = metrics
        self._round_robin = intake.round_robin
        self._max_body_bytes = intake.uploads.most_bytes
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there is no route for it
            await send({"type": "websocket.close", "code": 1008})
            return
        state = scope.setdefault("state", {})
        try:
            self._check(scope)
            await self._round_robin.turn(state["caller"].tenant if "caller" in state else "")
        except Exception as error:  # the HTTP edge: every failure becomes one reply
            await self._round_robin.turn("")
            self._metrics.refuse(error)
            await error_response(error, scope)(scope, receive, send)
            return
        state[REPLY_HEADERS] = {}
        receiver = _Receiver(receive, self._config.limits.upload_timeout_s)
        with suppress(ClientDisconnect):  # it took nothing for too long: there is no reader any more
            await self._app(scope, receiver, _Sender(scope, send, self._config.limits.write_timeout_s))

    def _check(self, scope: Scope) -> None:
        """Raise `RequestRefused` where the route may not run, or is not there."""
        headers, method = Headers(scope=scope), scope["method"]
        rule = self._rules.of(scope["path"])
        if rule is not None:
            scope["state"]["rule"], scope["state"][ERROR_SHAPE] = rule.path, rule.errors
        most_bytes = max(self._max_body_bytes, rule.most_bytes if rule else 0)
        raw = scope["headers"]
        limit = self._config.limits.max_header_bytes
        size = sum(len(name) + len(value) for name, value in raw) + len(scope["raw_path"]) + len(scope["query_string"])
        if size > limit or len(raw) > MAX_HEADERS:
            raise too_large("headers", f"{limit} bytes or {MAX_HEADERS} fields")
        length = headers.get("content-length", "0")
        if length.isdigit() and int(length) > most_bytes:
            raise too_large("body", f"{most_bytes} bytes")
        if rule is not None and method in rule.roles and self._is_open(rule.roles[method], headers):
            return
        caller = self._keys.caller(_given_key(headers))
        if not self._keys.required:
            check_local(headers, self._config.allow_origin if rule is not None and _is_for_clients(rule) else ())
        if UNSTORABLE.search(scope["path"]):
            raise RequestRefused("The path has the character U+0000; allowed: others.", code="invalid_path")
        if rule is None:
            raise unknown_url(method, scope["path"])
        if method not in rule.roles:
            message = f"Method not allowed for {method} {scope['path'][:200]}"
            allow = {"allow": ", ".join(sorted(rule.roles))}
            raise RequestRefused(message, code="method_not_allowed", status=405, headers=allow)
        roles = rule.roles[method]
        if roles and not any(caller.has(role) for role in roles):
            raise wrong_role(caller.roles, roles)
        scope["state"]["caller"] = caller

    def _is_open(self, roles: Roles | None, headers: Headers) -> bool:
        """Return whether a route runs for a caller that is not known.

        Without a key file every local caller is the developer; where a key is given it has to be right.
        """
        if roles != OPEN:
            return roles is None
        return _given_key(headers) is None if self._keys.required else not is_local(headers)


def _given_key(headers: Headers) -> str | None:
    """Return the key as `Authorization` has it; clients of Anthropic's API send it as `x-api-key`."""
    key = headers.get("x-api-key")
    return headers.get("authorization", key and f"Bearer {key}")


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
            raise ClientDisconnect
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(self._scope["state"].get(REPLY_HEADERS, {}))
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._send(message)
        except TimeoutError:
            self._stalled = True
            raise ClientDisconnect from None
