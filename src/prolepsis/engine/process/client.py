"""Asks an engine in a process of its own, from the server's event loop."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

import structlog

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.errors import EngineDead, ProlepsisError
from prolepsis.core.events import Event, Terminal
from prolepsis.core.messages import Control
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.engine.containment import Containment
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.channel import Channel
from prolepsis.engine.process.messages import (
    Answered,
    Ask,
    Close,
    Observed,
    Refused,
    Started,
    Status,
    Streamed,
    tell_all,
)
from prolepsis.engine.process.streams import AskedStreams

_DEADLINE_GRACE_S = 0.06
"""The engine's process ends a request at its deadline, with all its figures; later it is ended without them."""
_SILENT_TICKS = 3
"""Ticks without a status after which the process is not ready."""
_CLOSE_S = 10.0
"""How long a process may take to end by itself."""

log = structlog.get_logger(__name__)


class EngineProcess(Protocol):
    """The interface of an operating system process that the client needs; `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class ProcessEngineClient:
    """An `EngineClient` of an engine in another process.

    Facts and health are those of its last status, a quarter of a second old at most. When the process is gone, each of
    its requests fails with `EngineDead`. A process that says nothing for `stuck_after_s` seconds is killed.
    """

    def __init__(
        self,
        process: EngineProcess,
        channel: Channel,
        started: Started,
        observer: EngineObserver | None = None,
        *,
        stuck_after_s: float = 0.0,
        tick_s: float = 1.0,
    ) -> None:
        """`stuck_after_s`: 0 waits for ever; `tick_s`: how often the client looks whether the process is silent."""
        self.process = process
        self._channel = channel
        self._status = Status(EngineHealth(alive=True, ready=True, detail=""), started.info, (), ())
        self._observer = observer
        self._contained = Containment()
        self._stuck_after_s = stuck_after_s
        self._tick_s = tick_s
        self._numbers = count()
        self._streams = AskedStreams(channel)
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._num_silent = 0
        """Ticks since the last status. Ticks, not seconds: while the machine sleeps there are none."""
        self._dead: EngineDead | None = None
        self._closing = False

    @property
    def info(self) -> EngineInfo:
        return self._status.info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self._attach()
        self._check_alive()
        stream = EventStream(request, time.monotonic())
        number = self._streams.ask(request, stream)
        event: Event | None = None
        try:
            with stream.deadline(_DEADLINE_GRACE_S, partial(self._leave, number)):
                while not isinstance(event, Terminal):
                    yield (event := await stream.next())
        finally:
            self._streams.leave(number)

    def send(self, control: Control) -> None:
        self._channel.send(control)

    async def heads(self) -> Sequence[InstalledHead]:
        answer = await self._ask("heads")
        assert isinstance(answer, Sequence)
        return answer

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        answer = await self._ask("swap_head", name, proposer)
        assert isinstance(answer, HeadSwapped)
        return answer

    def health(self) -> EngineHealth:
        """Return the last known state of the engine, or that its process has ended or is silent."""
        with suppress(RuntimeError):  # no event loop runs yet
            self._attach()
        if self._closing:
            return EngineHealth(alive=False, ready=False, detail="closed")
        if self._dead is not None:
            return EngineHealth(alive=False, ready=False, detail=str(self._dead))
        if self._num_silent >= _SILENT_TICKS:
            detail = f"the engine's process has been silent for {self._num_silent * self._tick_s:g} s"
            return replace(self._status.health, ready=False, detail=detail)
        return self._status.health

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self._status.counts

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self._status.memory

    async def close(self) -> None:
        if self._closing:
            return
        self._attach()
        self._closing = True
        reading, watching = self._tasks
        watching.cancel()
        self._channel.send(Close())
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(reading)
        except TimeoutError:
            log.error("engine_process_killed", pid=self.process.pid, after_s=_CLOSE_S)
            self.process.kill()
            await reading
        await self._channel.close()

    def _attach(self) -> None:
        """Begin to listen to the process, on the running event loop."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._read()), loop.create_task(self._watch())]

    async def _read(self) -> None:
        await self._channel.open()
        try:
            while True:
                for message in await self._channel.receive():
                    self._handle(message)
        except EOFError:
            pass
        except Exception:  # contained: without a reader, requests would wait for ever
            log.exception("engine_process_misunderstood", pid=self.process.pid)
            self.process.kill()
        code = await asyncio.get_running_loop().run_in_executor(None, self.process.wait)
        self._end(_ended(code))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._num_silent += 1
            if self._stuck_after_s and self._num_silent * self._tick_s > self._stuck_after_s:
                log.error("engine_process_stuck", pid=self.process.pid, silent_s=self._num_silent * self._tick_s)
                self.process.kill()
                return

    def _handle(self, message: object) -> None:
        match message:
            case Streamed() | Refused():
                self._streams.take(message)
            case Observed():
                tell_all((message,), self._observer, self._contained)
            case Status():
                self._status, self._num_silent = message, 0
            case Answered(number, value, error):
                answer = self._asked.pop(number)
                if not answer.done():  # else whoever asked is gone
                    answer.set_exception(error) if error is not None else answer.set_result(value)
            case _:
                raise AssertionError(f"{type(message).__name__} is not a message of an engine's process")

    def _end(self, error: EngineDead) -> None:
        """End the requests of a process that has ended."""
        self._dead = error
        if not self._closing:
            log.error("engine_process_lost", pid=self.process.pid, detail=str(error))
        now = time.monotonic()
        for stream in self._streams.lose():
            if self._closing:
                stream.abort("shutdown", now)
            else:
                stream.fail(error, now)
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        self._asked.clear()

    async def _ask(self, method: str, *arguments: object) -> object:
        self._attach()
        self._check_alive()
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Ask(number, method, arguments))
        return await answer

    def _check_alive(self) -> None:
        if self._closing:
            raise EngineDead("the engine is closed")
        if self._dead is not None:
            raise self._dead

    def _leave(self, number: int, error: ProlepsisError) -> None:
        """End a request here; what still comes for it is dropped."""
        stream = self._streams.leave(number)
        if stream is not None:
            stream.fail(error, time.monotonic())


def _ended(code: int) -> EngineDead:
    how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
    return EngineDead(f"the engine's process ended {how}")
