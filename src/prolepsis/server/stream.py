"""Streams of an answer: several read as one, ended when the client leaves, and sent as events."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prolepsis.control.web.errors import describe_error, error_response, shape_of

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    """An object that has to be closed, such as an asynchronous generator."""

    async def aclose(self) -> None: ...


async def close(events: AsyncIterator[object]) -> None:
    """Close an iterator that has to be closed."""
    if isinstance(events, Closable):
        await events.aclose()


def merged(streams: Sequence[AsyncGenerator[T, None]]) -> "AsyncGenerator[T, None] | Merged[T]":
    """Return the streams as one."""
    return streams[0] if len(streams) == 1 else Merged(streams)


async def led(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what the first stream has, and then what the others have, as one."""
    for some in (streams[:1], streams[1:]):
        if some:
            async with aclosing(merged(some)) as items:
                async for item in items:
                    yield item


class Merged(Generic[T]):
    """Several streams read as one, each item as it comes; the first error ends them all."""

    def __init__(self, streams: Sequence[AsyncGenerator[T, None]]) -> None:
        self._streams = streams
        self._num_open = len(streams)
        self._arrivals: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()
        self._reading: list[asyncio.Task[None]] = []

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if not self._reading:
            self._reading = [asyncio.create_task(self._read(stream)) for stream in self._streams]
        while self._num_open:
            arrived = await self._arrivals.get()
            if isinstance(arrived, Exception):
                raise arrived
            if arrived is not None:
                return arrived[0]
            self._num_open -= 1
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End all streams."""
        for task in self._reading:
            task.cancel()
        await asyncio.gather(*self._reading, return_exceptions=True)

    async def _read(self, stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream):
            try:
                async for item in stream:
                    self._arrivals.put_nowait((item,))
                self._arrivals.put_nowait(None)
            except Exception as error:  # handed on to the reader of the merged stream
                self._arrivals.put_nowait(error)


Json = Mapping[str, object]

_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_PADDED_TO = 128


def padded(event: Json) -> dict[str, object]:
    """Return the event with an `obfuscation` that makes its size a multiple of 128 bytes."""
    missing = -len(_encode({**event, "obfuscation": ""}).encode()) % _PADDED_TO
    return {**event, "obfuscation": secrets.token_hex(_PADDED_TO)[:missing]}


@dataclass(frozen=True, slots=True)
class Framing:
    """How events are written on the wire."""

    content_type: str
    frame: Callable[[Json], str]
    nothing: bytes
    """What readers skip, between two events."""
    end: bytes = b""
    """After the last event, unless it is a failure."""


_SSE_TYPE = "text/event-stream; charset=utf-8"
SSE = Framing(_SSE_TYPE, lambda event: f"data: {_encode(event)}\n\n", b":\n\n", b"data: [DONE]\n\n")
UNENDED_SSE = replace(SSE, end=b"")
"""Without [DONE]: the last event itself says that it is the last, as llama.cpp has it."""
NAMED_SSE = Framing(
    _SSE_TYPE, lambda event: f"event: {event.get('type', 'error')}\ndata: {_encode(event)}\n\n", b":\n\n"
)
"""Each event's `type` is its name, as at /v1/responses."""
NDJSON = Framing("application/x-ndjson", lambda event: f"{_encode(event)}\n", b" ")


class AnswerStream(Response):
    """Sends `events` as they come and closes them when the client leaves.

    The status line waits for the first event, so a failure before it is answered with its own status; a later failure
    is sent as a last event, in the shape of the route's errors. A client that stops sending gets nothing that it has to
    read, so that the connection finds out whether it is gone.
    """

    def __init__(
        self,
        events: AsyncGenerator[Json, None],
        framing: Framing = SSE,
        *,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        own = {"content-type": framing.content_type, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers={**own, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._framing = framing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnected):
            nothing = _part(self._framing.nothing)
            await until_disconnect(receive, self._write(scope, receive, send), on_half_close=lambda: send(nothing))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events) as events:
            try:
                first = await anext(events)
            except Exception as error:  # the HTTP edge: every failure becomes one reply
                await error_response(error, scope)(scope, receive, send)
                return
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await send(_part(self._event(first)))
            try:
                async for event in events:
                    await send(_part(self._event(event)))
            except ClientDisconnected:  # it stopped reading, so an error event has no reader
                raise
            except Exception as error:  # the status is out: the stream itself says what failed
                await send(_part(self._event(shape_of(scope).body(describe_error(error))), more=False))
            else:
                await send(_part(self._framing.end, more=False))

    def _event(self, value: Json) -> bytes:
        return self._framing.frame(value).encode()


def _part(data: bytes, *, more: bool = True) -> dict[str, object]:
    return {"type": "http.response.body", "body": data, "more_body": more}


class ClientDisconnected(Exception):
    """The client is gone."""


async def never() -> Message:
    """Stand for a client that sends nothing more and never leaves."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future has no result")


async def _nothing() -> None:
    pass


async def until_disconnect(
    receive: Receive,
    work: Coroutine[object, object, T],
    *,
    on_half_close: Callable[[], Awaitable[None]] = _nothing,
) -> T:
    """Return what `work` returns; cancel it and raise `ClientDisconnected` where the client leaves first.

    The request's body must have been read before. When this returns or raises, `work` has ended. `on_half_close` is
    called if the client closes its direction after the reply has begun.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive, on_half_close))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive, on_half_close: Callable[[], Awaitable[None]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        await on_half_close()
