"""Which roles each route asks for. A route that is not in this table is answered as if it did not exist."""

import asyncio
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.api.auth.keys import Keys
from prolepsis.api.connections import is_loopback
from prolepsis.api.stream import ClientDisconnected
from prolepsis.core.config import ServerConfig
from prolepsis.telemetry.door import DoorMetrics
from prolepsis.web.caller import ROLES, Caller, Role
from prolepsis.web.errors import ErrorReply, describe_error
from prolepsis.web.refusals import count_refusal, not_local, too_large, upload_too_slow, wrong_role

Roles = frozenset[Role] | None
"""Any of these roles opens a route; None: open without a key."""

_ANY_ROLE: Roles = frozenset(ROLES)
_CLIENT: Roles = frozenset({"client"})
_WATCHES: Roles = frozenset({"viewer", "operator"})
_READS: Roles = frozenset({"viewer", "operator", "auditor"})
_AUDITS: Roles = frozenset({"auditor"})
"""Entries name tenants and, by setting, hold what they wrote."""
_OPERATES: Roles = frozenset({"operator"})

ROUTES: dict[str, Roles] = {
    "GET /health/live": None,
    "GET /health": _ANY_ROLE,
    "GET /health/ready": _ANY_ROLE,
    "GET /health/deep": _WATCHES,
    "GET /metrics": _WATCHES,
    "GET /version": _ANY_ROLE,
    "GET /openapi.json": _ANY_ROLE,
    "GET /v1/models": _ANY_ROLE,
    "GET /v1/models/{name:path}": _ANY_ROLE,
    "POST /v1/chat/completions": _CLIENT,
    "POST /v1/completions": _CLIENT,
    "POST /v1/responses": _CLIENT,
    "POST /v1/embeddings": _CLIENT,
    "POST /tokenize": _CLIENT,
    "POST /detokenize": _CLIENT,
    "GET /admin/rollouts": _READS,
    "GET /admin/rollouts/{rollout_id}": _READS,
    "POST /admin/rollouts/{rollout_id}/{command}": _OPERATES,
    "GET /admin/policy": _READS,
    "PUT /admin/policy": _OPERATES,
    "GET /admin/policy/versions": _READS,
    "GET /admin/policy/versions/{version}": _READS,
    "POST /admin/policy/rollback": _OPERATES,
    "GET /admin/correctness": _READS,
    "GET /admin/audit": _AUDITS,
    "GET /admin/audit/{entry}": _AUDITS,
    "POST /admin/audit/{entry}/replay": _AUDITS,
    "GET /admin/cost": _READS,
    "GET /admin/kill": _WATCHES,
    "PUT /admin/kill": _OPERATES,
    "GET /admin/breakers": _WATCHES,
    "PUT /admin/breakers": _OPERATES,
    "GET /admin/contract": _READS,
    "GET /admin/drift": _READS,
    "GET /admin/shadow": _READS,
    "POST /admin/drift/reset": _OPERATES,
}
"""Method and path -> roles; `admin` has every role."""


@dataclass(frozen=True, slots=True)
class Rule:
    """What the table says of one path."""

    path: str
    """The route's pattern, for logs and counters."""
    methods: Mapping[str, Roles]


class Rules:
    """The table, ready to be asked; patterns are tried in its order."""

    def __init__(self, routes: Mapping[str, Roles]) -> None:
        by_path: dict[str, dict[str, Roles]] = {}
        for route, roles in routes.items():
            method, path = route.split(" ", 1)
            by_path.setdefault(path, {})[method] = roles
        self._patterns: list[tuple[re.Pattern[str], Rule]] = [
            (compile_path(path)[0], Rule(path, methods)) for path, methods in by_path.items()
        ]

    def of(self, path: str) -> Rule | None:
        """Return the rule of a path as given; None: no route is let out under it."""
        return next((rule for pattern, rule in self._patterns if pattern.match(path)), None)


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
    """Return the mapping to fill before the reply starts; `Guard` sends it."""
    headers: dict[str, str] = http.scope["state"].setdefault(REPLY_HEADERS, {})
    return headers


MAX_HEADERS = 128


class Guard:
    """ASGI middleware. What has no rule it answers with 404 itself: a route that is not in the table cannot be reached.

    Sets `scope["state"]["caller"]`, and sends the headers that the gate leaves in `scope["state"]`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        config: ServerConfig,
        metrics: DoorMetrics,
        routes: Mapping[str, Roles] = ROUTES,
    ) -> None:
        self._app = app
        self._keys = keys
        self._config = config
        self._metrics = metrics
        self._rules = Rules(routes)

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
        except Exception as error:  # the HTTP edge: whatever failed becomes one reply
            count_refusal(error, self._metrics)
            refusal = describe_error(error)
        if refusal is not None:
            await refusal.response()(scope, receive, send)
            return
        state[REPLY_HEADERS] = {}
        receiver = _Receiver(receive, self._config.upload_timeout_s)
        with suppress(ClientDisconnected):  # it took nothing for too long: nobody is left to tell
            await self._app(scope, receiver, _Sender(scope, send, self._config.write_timeout_s))

    async def _check(self, scope: Scope) -> ErrorReply | None:
        """Return the reply to what is not there, None where the route may run; raises `Refused`."""
        headers = Headers(scope=scope)
        self._check_sizes(scope, headers)
        rule = self._rules.of(scope["path"])
        if rule is not None:
            scope["state"]["rule"] = rule.path
        roles = rule.methods.get(scope["method"]) if rule else None
        if rule is not None and scope["method"] in rule.methods and roles is None:
            return None
        caller = await self._keys.caller(headers.get("authorization"))
        if not self._keys.required:
            check_local(headers)
        if rule is None or scope["method"] not in rule.methods:
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
    def _check_role(caller: Caller, roles: Roles) -> None:
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


def _not_there(scope: Scope, rule: Rule | None) -> ErrorReply:
    what = f"{scope['method']} {scope['path'][:200]}"
    if rule is None:
        return ErrorReply(404, f"No route {what}", "unknown_url")
    allowed = ", ".join(sorted(rule.methods))
    return ErrorReply(405, f"Method not allowed for {what}", "method_not_allowed", headers={"allow": allowed})
