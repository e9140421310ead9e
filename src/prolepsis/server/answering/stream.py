"""Streams of an answer: several read as one, ended when the client leaves, and sent as events."""

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, runtime_checkable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prolepsis.control.web.errors import describe_error, error_response, shape_of
from prolepsis.core.engine_client import PromptProgress

T = TypeVar("T")


@runtime_checkable
class Closable(Protocol):
    """An object that has to be closed, such as an asynchronous generator."""

    async def aclose(self) -> None: ...


async def close(events: AsyncIterator[object]) -> None:
    if isinstance(events, Closable):
        await events.aclose()


def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Return several streams read as one, each item as it comes; the first error ends them all."""
    return streams[0] if len(streams) == 1 else _interleaved(streams)


async def led(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what the first stream has, and then what the others have, as one."""
    for some in (streams[:1], streams[1:]):
        if some:
            async with aclosing(merged(some)) as items:
                async for item in items:
                    yield item


async def _interleaved(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    arrivals, num_open = asyncio.Queue[tuple[T] | Exception | None](), len(streams)

    async def read(stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream):
            try:
                async for item in stream:
                    arrivals.put_nowait((item,))
                arrivals.put_nowait(None)
            except Exception as error:  # handed on to the reader of the merged stream
                arrivals.put_nowait(error)

    reading = [asyncio.create_task(read(stream)) for stream in streams]
    try:
        while num_open:
            arrived = await arrivals.get()
            if isinstance(arrived, Exception):
                raise arrived
            if arrived is None:
                num_open -= 1
            else:
                yield arrived[0]
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


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
    comment: Callable[[str], str]  # returns what readers skip, between two events
    end: bytes = b""  # after the last event, unless it is a failure


SSE = Framing(
    "text/event-stream; charset=utf-8",
    lambda event: f"data: {_encode(event)}\n\n",
    ": {}\n\n".format,
    b"data: [DONE]\n\n",
)
UNENDED_SSE = replace(SSE, end=b"")
"""Without [DONE]: the last event itself says that it is the last, as llama.cpp has it."""
NAMED_SSE = replace(UNENDED_SSE, frame=lambda event: f"event: {event.get('type', 'error')}\n{SSE.frame(event)}")
"""Each event's `type` is its name, as at /v1/responses."""
NDJSON = Framing("application/x-ndjson", lambda event: f"{_encode(event)}\n", lambda text: " ")

OPENS_AFTER_S = 0.25
"""A stream begins with its first event, or so long after its request was taken, also while that waits in the queue."""
PROGRESS_S = 1.0
"""How often a client is shown the progress of its prompt, where it asked for that."""
PING = "prolepsis.ping"
"""In a message to the client: it is no part of the answer."""


class Voice:
    """What an answer says while its client waits; by itself nothing, so that comments say that it lives."""

    shows_progress: bool = False

    def opening(self) -> Sequence[Json]:
        """Return the events that a stream begins with before the first token; none where they are out."""
        return ()

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        """Return events in place of a comment; `progress`: of the prompt, as far as it is known."""
        return ()


SILENT = Voice()


class AnswerStream(Response):
    """Sends `events` as they come and closes them when the client leaves.

    The status line waits for the first event, at most `OPENS_AFTER_S`. A failure before it is answered with its own
    status; a later one is sent as a last event, in the shape of the route's errors. A client that stops sending gets
    nothing that it has to read, so that the connection finds out whether it is gone.
    """

    def __init__(
        self,
        events: AsyncGenerator[Json, None],
        framing: Framing = SSE,
        *,
        headers: Mapping[str, str] | None = None,
        ping_s: float = 0.0,
        voice: Voice = SILENT,
        progress: Callable[[], PromptProgress | None] = lambda: None,
    ) -> None:
        """`ping_s`: longest silence, 0: any; `progress` says how far the prompt was read, where that is known."""
        own = {"content-type": framing.content_type, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(headers={**own, **(headers or {})})
        del self.headers["content-length"]
        self._events = events
        self._framing = framing
        self._ping_s, self._voice, self._progress = ping_s, voice, progress

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        line = _Line(send, self.raw_headers)
        nothing = self._framing.comment("").encode()
        with suppress(ClientDisconnect):
            work = self._write(line, scope, receive, send)
            await until_disconnect(receive, work, on_half_close=lambda: line.send(nothing, is_ping=True))

    async def _write(self, line: "_Line", scope: Scope, receive: Receive, send: Send) -> None:
        pinging, failure = asyncio.ensure_future(self._ping(line)), None
        try:
            async with aclosing(self._events) as events:
                try:
                    async for event in events:
                        line.is_waiting = False
                        await line.send(self._framed(event))
                except ClientDisconnect:  # it stopped reading, so an error event has no reader
                    raise
                except Exception as error:  # the HTTP edge: every failure becomes one reply, or the last event of one
                    failure = error
                async with line.turn:  # a ping that is under way comes first, and none later
                    pinging.cancel()
                if failure is None:
                    await line.send(self._framing.end, more=False)
                elif line.has_begun:  # the status is out: the stream itself says what failed
                    await line.send(self._framed(shape_of(scope).body(describe_error(failure))), more=False)
                else:
                    await error_response(failure, scope)(scope, receive, send)
        finally:
            pinging.cancel()

    async def _ping(self, line: "_Line") -> None:
        """Begin the stream where no event does so in time, and then break its silences."""
        every_s, voice = self._ping_s, self._voice
        await asyncio.sleep(OPENS_AFTER_S)
        with suppress(ClientDisconnect):  # what the stream itself sends next says the same
            if not line.has_begun and (opening := voice.opening()):
                await line.send(self._framed(*opening))
            while every_s or not line.has_begun:
                due_s = min(PROGRESS_S, every_s) if voice.shows_progress and line.is_waiting else every_s
                if line.quiet_s >= due_s or not line.has_begun:
                    await line.send(self._silence(self._progress()), is_ping=True)
                await asyncio.sleep(max(0.001, due_s - line.quiet_s))

    def _silence(self, progress: PromptProgress | None) -> bytes:
        if events := self._voice.silence(progress):
            return self._framed(*events)
        return self._framing.comment(str(progress or "ping")).encode()

    def _framed(self, *events: Json) -> bytes:
        return "".join(map(self._framing.frame, events)).encode()


class _Line:
    """Sends one stream, piece by piece; the status goes out with the first. Pings come from a task of their own."""

    def __init__(self, send: Send, headers: Sequence[tuple[bytes, bytes]]) -> None:
        self.has_begun = False
        self.is_waiting = True
        """There was no event so far."""
        self._send = send
        self._headers = headers
        self.turn = asyncio.Lock()
        self._sent_at = asyncio.get_running_loop().time()

    @property
    def quiet_s(self) -> float:
        return asyncio.get_running_loop().time() - self._sent_at

    async def send(self, data: bytes, *, more: bool = True, is_ping: bool = False) -> None:
        async with self.turn:
            if not self.has_begun:
                self.has_begun = True
                await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
            await self._send({"type": "http.response.body", "body": data, "more_body": more, PING: is_ping})
            self._sent_at = asyncio.get_running_loop().time()


async def never() -> Message:
    """Stand for a client that sends nothing more and never leaves."""
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future has no result")


async def _nothing() -> None:
    pass


async def until_disconnect(
    receive: Receive, work: Coroutine[object, object, T], *, on_half_close: Callable[[], Awaitable[None]] = _nothing
) -> T:
    """Return what `work` returns; cancel it and raise `ClientDisconnect` where the client leaves first.

    The request's body must have been read before. When this returns or raises, `work` has ended. `on_half_close` is
    called if the client closes its direction after the reply has begun.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive, on_half_close))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive, on_half_close: Callable[[], Awaitable[None]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        await on_half_close()
