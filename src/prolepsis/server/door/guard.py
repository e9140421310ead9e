"""Stands before every route: sizes, the key, the role; and watches that a client takes what it is sent."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from prolepsis.core.config import ServerConfig
from prolepsis.server.caller import Caller
from prolepsis.server.disconnect import ClientDisconnected
from prolepsis.server.door.keys import Keys
from prolepsis.server.door.local import check_local
from prolepsis.server.door.refusals import count_refusal, too_large, upload_too_slow, wrong_role
from prolepsis.server.door.reply_headers import NAME as REPLY_HEADERS
from prolepsis.server.door.rules import ROUTES, Roles, Rule, Rules
from prolepsis.server.errors import ErrorReply, describe_error
from prolepsis.telemetry.door import DoorMetrics

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
