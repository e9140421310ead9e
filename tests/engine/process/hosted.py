"""A client and a host of an engine's process, both on one event loop, with a socket pair between them."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prolepsis.engine.client import EngineClient
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.channel import Channel
from prolepsis.engine.process.client import ProcessEngineClient
from prolepsis.engine.process.host import Host
from prolepsis.engine.process.messages import Started
from prolepsis.engine.process.recorder import Recorder
from tests.api.fakes import ByteTokenizer
from tests.fake_client import INFO


@dataclass(slots=True)
class FakeProcess:
    """A process that ends when it is told to."""

    pid: int = 4711
    code: int | None = None
    killed: bool = False
    connection: socket.socket | None = None
    """Its end of the socket, closed when it is killed."""
    ended: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        return self.code

    def wait(self, timeout: float | None = None) -> int:
        assert self.ended.wait(timeout or 10.0), "it does not end"
        assert self.code is not None
        return self.code

    def kill(self) -> None:
        self.killed = True
        self.end(-9)
        if self.connection is not None:
            self.connection.shutdown(socket.SHUT_RDWR)

    def ended_itself(self) -> None:
        if self.code is None:
            self.end(0)

    def end(self, code: int) -> None:
        self.code = code
        self.ended.set()


@asynccontextmanager
async def silent(*, stuck_after_s: float = 0.0, tick_s: float = 1.0) -> AsyncIterator[ProcessEngineClient]:
    """Make a client whose process has started and never says anything again."""
    here, there = socket.socketpair()
    started = Started(INFO, ByteTokenizer(), ())  # type: ignore[arg-type]  # only its facts are used
    process = FakeProcess(connection=there)
    yield (client := ProcessEngineClient(process, Channel(here), started, stuck_after_s=stuck_after_s, tick_s=tick_s))
    process.kill()
    await client.close()
    there.close()


@asynccontextmanager
async def hosted(
    make: Callable[[EngineObserver], EngineClient], observer: EngineObserver | None = None
) -> AsyncIterator[ProcessEngineClient]:
    """Host the engine that is made with an observer, whose calls reach `observer`."""
    here, there = socket.socketpair()
    process = FakeProcess(connection=there)
    channel = Channel(there)
    engine = make(Recorder(channel.put))
    running = asyncio.create_task(Host(channel, engine).run())
    running.add_done_callback(lambda _: process.ended_itself())
    started = Started(engine.info, ByteTokenizer(), ())  # type: ignore[arg-type]  # only its facts are used
    client = ProcessEngineClient(process, Channel(here), started, observer)
    yield client
    await client.close()
    await running
