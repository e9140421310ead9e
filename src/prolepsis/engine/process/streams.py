"""Both ends of requests over a channel: one asks and holds the streams of events, the other generates them."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from itertools import count

import structlog

from prolepsis.core.errors import EngineError, ProlepsisError
from prolepsis.core.events import Terminal
from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.client import EngineClient
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.process.channel import Channel
from prolepsis.engine.process.messages import Generate, Leave, Refused, Streamed

log = structlog.get_logger(__name__)


class AskedStreams:
    """The end that asks: the streams of its requests that have not ended, by number."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = count()
        self._streams: dict[int, EventStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def ask(self, request: GenerateRequest, stream: EventStream) -> int:
        """Have the other end generate into `stream`; return the request's number."""
        number = next(self._numbers)
        self._streams[number] = stream
        self._channel.send(Generate(number, request))
        return number

    def take(self, message: Streamed | Refused) -> None:
        """Give an event or an error to its reader; without a reader it is dropped."""
        stream = self._streams.get(message.stream)
        if stream is None:
            return
        if isinstance(message, Refused):
            stream.events.put_nowait(message.error)
        else:
            stream.put(message.event)
        if isinstance(message, Refused) or isinstance(message.event, Terminal):
            del self._streams[message.stream]

    def leave(self, number: int) -> EventStream | None:
        """Take no further events of a request; return its stream, or None if it has ended."""
        stream = self._streams.pop(number, None)
        if stream is not None:
            self._channel.send(Leave(number))
        return stream

    def lose(self) -> Sequence[EventStream]:
        """Return the streams that the other end can no longer end."""
        lost = list(self._streams.values())
        self._streams.clear()
        return lost


class ServedStreams:
    """The end that is asked: it generates with the client of an engine, a task for each request."""

    def __init__(self, channel: Channel, client: EngineClient, ended: Callable[[], None] = lambda: None) -> None:
        """`ended` is called after each request."""
        self._channel = channel
        self._client = client
        self._ended = ended
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def obey(self, message: Generate | Leave | Abort | OfferDraft) -> None:
        match message:
            case Generate(number, request):
                task = self._tasks[number] = asyncio.create_task(self._generate(number, request))
                task.add_done_callback(partial(self._forget, number))
            case Leave(number):
                if (running := self._tasks.get(number)) is not None:
                    running.cancel()
            case Abort() | OfferDraft():  # after the first turn of the task of a request that was asked for just before
                asyncio.get_running_loop().call_soon(self._client.send, message)

    def cancel(self) -> None:
        """End the requests; nothing more is sent of them."""
        for task in self._tasks.values():
            task.cancel()

    async def wait(self) -> None:
        """Return when the requests have ended."""
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _forget(self, number: int, _: object) -> None:
        del self._tasks[number]
        self._ended()

    async def _generate(self, number: int, request: GenerateRequest) -> None:
        try:
            async with aclosing(self._client.generate(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    self._channel.send(Streamed(number, event))
        except Exception as error:  # the end that asks raises it where the request was made
            self._channel.send(Refused(number, portable(error)))


def portable(error: Exception) -> Exception:
    """Return an error that another process can rebuild; others travel as text."""
    if isinstance(error, ProlepsisError):
        return error
    log.error("engine_process_error", exc_info=error)
    return EngineError(f"{type(error).__name__}: {error}")
