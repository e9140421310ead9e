"""Server-sent events: one `data:` line of JSON an event, `[DONE]` at the end."""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from prolepsis.server.disconnect import ClientDisconnected, until_disconnect
from prolepsis.server.errors import describe_error

Json = Mapping[str, object]

_HEADERS = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache", "x-accel-buffering": "no"}


class EventStream(Response):
    """Sends `events` as they come and closes them when the client leaves.

    The status line waits for the first event, so a failure before it is answered with its own status; a later failure
    is sent as a last event with an `error`, without `[DONE]`.
    """

    def __init__(self, events: AsyncGenerator[Json, None]) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnected):
            await until_disconnect(receive, self._write(scope, receive, send))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except Exception as error:  # the HTTP edge: whatever failed becomes one reply
                await describe_error(error).response()(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(_part(_event(first)))
            try:
                async for event in events:
                    await send(_part(_event(event)))
            except Exception as error:  # the status is out: the stream itself says what failed
                await send(_part(_event(describe_error(error).body), more=False))
            else:
                await send(_part(b"data: [DONE]\n\n", more=False))


def _event(value: Json) -> bytes:
    return b"data: " + json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n\n"


def _part(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}
