"""The front door's side of a connection to one replica."""

import asyncio
import time

from prolepsis.core.errors import EngineDead, ReplicaLost
from prolepsis.core.events import Failed
from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.containment import Containment
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.channel import Channel
from prolepsis.engine.process.messages import Refused, Streamed, tell_all
from prolepsis.engine.process.streams import AskedStreams
from prolepsis.ray.connection import CONNECT_S, connect
from prolepsis.ray.messages import Address, Beat, ControlState, Figures, Hello, Leaving

TICK_S = 0.5
SILENT_TICKS = 10
"""Ticks without a message after which a replica is taken for lost. Ticks, not seconds: a front door that was stopped
itself counts one."""


class ReplicaLink:
    """Asks one replica. Its requests fail with `ReplicaLost` when the replica is gone or silent."""

    def __init__(
        self, hello: Hello, channel: Channel, observer: EngineObserver | None = None, *, tick_s: float = TICK_S
    ) -> None:
        """`channel` is open, and `hello` is what the replica has said first."""
        self.hello = hello
        self._observer = observer
        self._contained = Containment()
        self.takes_requests = True
        """False where the replica is leaving, though it still ends those that it has, or lost."""
        self._num_elsewhere = 0
        self._channel = channel
        self._tick_s = tick_s
        self._streams = AskedStreams(channel)
        self._num_silent = 0

    @classmethod
    async def to(cls, address: Address, observer: EngineObserver | None = None) -> "ReplicaLink":
        """Connect to a replica; raises `OSError`, `TimeoutError` or `EOFError`."""
        channel = Channel(await connect(address))
        await channel.open()
        try:
            async with asyncio.timeout(CONNECT_S):
                hello, *more = await channel.receive()
        except BaseException:
            channel.abort()
            raise
        assert isinstance(hello, Hello), "a replica says hello first"
        link = cls(hello, channel, observer)
        for message in more:
            link._handle(message)
        return link

    @property
    def load(self) -> int:
        """Requests in the replica: of this front door, and of the others as it said last."""
        return len(self._streams) + self._num_elsewhere

    def ask(self, request: GenerateRequest, stream: EventStream) -> int:
        """Have the replica generate into `stream`; return the request's number."""
        return self._streams.ask(request, stream)

    def leave(self, number: int) -> None:
        """A request's events have no reader any more; what has ended is ignored."""
        self._streams.leave(number)

    def tell(self, message: ControlState | Abort | OfferDraft) -> None:
        self._channel.send(message)

    async def run(self) -> str:
        """Take what the replica says until it is gone; return how that was noticed."""
        watching = asyncio.create_task(self._watch())
        detail = "its connection ended"
        try:
            while True:
                for message in await self._channel.receive():
                    self._handle(message)
                self._num_silent = 0
        except EOFError:
            if watching.done():
                detail = "it has been silent"
        except EngineDead as error:
            detail = str(error)
        finally:
            watching.cancel()
            self._lose(detail)
            await self._channel.close()
        return detail

    async def _watch(self) -> None:
        while self._num_silent < SILENT_TICKS:
            await asyncio.sleep(self._tick_s)
            self._num_silent += 1
        self._channel.abort()

    def _handle(self, message: object) -> None:
        match message:
            case Streamed(event=Failed(error=EngineDead() as error)) | Refused(error=EngineDead() as error):
                raise error  # only this replica is lost
            case Streamed() | Refused():
                self._streams.take(message)
            case Beat(num_elsewhere):
                self._num_elsewhere = num_elsewhere
            case Leaving():
                self.takes_requests = False
            case Figures(observed):
                tell_all(observed, self._observer, self._contained)
            case _:
                raise AssertionError(f"{type(message).__name__} is no message of a replica")

    def _lose(self, detail: str) -> None:
        self.takes_requests = False  # before its requests look for another
        now, hello = time.monotonic(), self.hello
        error = ReplicaLost(f"the replica is lost: {detail}", group=hello.group, max_model_len=hello.max_model_len)
        for stream in self._streams.lose():
            stream.fail(error, now)
