"""A link and the host of an engine, both on one event loop, with a socket pair between them."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prolepsis.core.engine_client import EngineClient, EngineHealth
from prolepsis.core.figures import EngineObserver
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.channel import front_end_channel, host_channel
from prolepsis.remote.host import Host, KeptFigures
from prolepsis.remote.link import HostLink
from prolepsis.remote.messages import Status
from tests.fake_client import INFO
from tests.fakes import EngineSetup, build


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


def small(observer: EngineObserver | None = None) -> ThreadEngineClient:
    setup = EngineSetup(max_model_len=1024, observer=observer, proposers=[ClientProposer()])
    return ThreadEngineClient(build(setup))


@asynccontextmanager
async def silent(*, lost_after_s: float = 0.0, tick_s: float = 1.0) -> AsyncIterator[HostLink]:
    """Make a client whose process has started and never says anything again."""
    here, there = socket.socketpair()
    process = FakeProcess(connection=there)
    status = Status(EngineHealth(alive=True, ready=True, detail=""), INFO, (), ())
    channel = front_end_channel(here)
    yield (client := HostLink(channel, status, process=process, lost_after_s=lost_after_s, tick_s=tick_s))
    process.kill()
    await client.close()
    there.close()


@asynccontextmanager
async def hosted(
    make: Callable[[EngineObserver], EngineClient], observer: EngineObserver | None = None
) -> AsyncIterator[HostLink]:
    """Host the engine that is made with an observer, whose calls reach `observer`."""
    here, there = socket.socketpair()
    process = FakeProcess(connection=there)
    figures = KeptFigures()
    engine = make(figures)
    running = asyncio.create_task(Host(engine, figures).serve(host_channel(there)))
    running.add_done_callback(lambda _: process.ended_itself())
    client = HostLink(front_end_channel(here), Status.of(engine), observer, process=process)
    yield client
    await client.close()
    await running
    await engine.close()
