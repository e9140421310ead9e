"""The client of one engine's host: in a process that this one has started, or wherever a directory has found it."""

import asyncio
import signal
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

import structlog

from prolepsis.core.codec import ProtocolError
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import Demand, EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import DeadlineExceeded, EngineDead, InvalidParameter
from prolepsis.core.events import Event, Terminal
from prolepsis.core.figures import EngineObserver, Figure
from prolepsis.core.messages import Control
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.containment import Containment
from prolepsis.engine.event_stream import EventStream
from prolepsis.remote.channel import Channel
from prolepsis.remote.messages import (
    Close,
    Generate,
    HeadLoaded,
    Heads,
    Leave,
    ListHeads,
    LoadHead,
    Rejected,
    Status,
    Streamed,
    ToFrontEnd,
    ToHost,
    WaitingLoad,
)

_DEADLINE_GRACE_S = 0.1
"""The host's engine ends a request at its deadline, with all its figures; later it is ended without them."""
TICK_S = 0.5  # seconds between two looks whether a host is silent
_SILENT_S = 3.0  # seconds without a message after which the engine is not ready
_EXIT_TICKS = 2  # for a process to exit whose connection has ended; then it is killed
_CLOSE_S = 10.0  # longest wait for a host to end its requests, and itself where it is this process's own

log = structlog.get_logger(__name__)


class HostProcess(Protocol):
    """The interface of an operating system process that a link needs; `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


class HostLink:
    """An `EngineClient` of an engine behind a connection.

    Facts and health are those of its last status, a quarter of a second old at most. When the host is gone, each of its
    requests fails with `EngineDead`. A host that says nothing for `lost_after_s` seconds is given up, and killed if
    its process is this one's own.
    """

    def __init__(
        self,
        channel: Channel[ToHost, ToFrontEnd],
        status: Status,
        observer: EngineObserver | None = None,
        *,
        process: HostProcess | None = None,
        demand: Callable[[], Demand] | None = None,
        lost_after_s: float = 0.0,
        tick_s: float = TICK_S,
    ) -> None:
        """`status`: the host's first. `process`: the host's, if it ends with this link. `lost_after_s`: 0 is for ever.

        `demand` says what waits for engines. `tick_s`: how often the link looks whether the host is silent.
        """
        self.process = process
        self._channel = channel
        self._status = status
        self._observer = observer
        self._demand = demand
        self._contained = Containment()
        self._lost_after_s = lost_after_s
        self._tick_s = tick_s
        self._numbers = count()
        self._streams: dict[int, EventStream] = {}
        self._questions: dict[int, asyncio.Future[Heads | HeadLoaded]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._num_silent = 0
        """Ticks since the last message. Ticks, not seconds: while this process stands still there are none."""
        self._dead: EngineDead | None = None
        self._closing: asyncio.Task[None] | None = None
        """Shared by all who close it; a caller that leaves does not end it."""

    @property
    def info(self) -> EngineInfo:
        return self._status.info

    def attach(self) -> None:
        """Begin to read what the host sends, on the running event loop."""
        if not self._tasks:
            loop = asyncio.get_running_loop()
            self._tasks = [loop.create_task(self._read()), loop.create_task(self._watch())]

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.attach()
        self._check_alive()
        number, stream = next(self._numbers), EventStream(request, time.monotonic())
        try:
            self._channel.send(Generate(number, request))
        except ProtocolError as error:
            raise InvalidParameter(f"the request cannot be sent to its engine: {error}") from error
        self._streams[number] = stream
        event: Event | None = None
        try:
            with stream.deadline(_DEADLINE_GRACE_S, partial(self._expire, number)):
                while not isinstance(event, Terminal):
                    yield (event := await stream.next())
        finally:
            self._leave(number)

    def send(self, control: Control) -> None:
        self._channel.send(control)

    async def heads(self) -> Sequence[InstalledHead]:
        answer = await self._ask(ListHeads(next(self._numbers)))
        assert isinstance(answer, Heads)
        return answer.heads

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        answer = await self._ask(LoadHead(next(self._numbers), name, proposer))
        assert isinstance(answer, HeadLoaded)
        return answer.result

    def health(self) -> EngineHealth:
        """Return the last known state of the engine, or that its host has ended or is silent."""
        with suppress(RuntimeError):  # no event loop runs yet
            self.attach()
        if self._closing is not None or self._dead is not None:
            detail = str(self._dead) if self._closing is None else "closed"
            return EngineHealth(alive=False, ready=False, detail=detail)
        silent_s = self._num_silent * self._tick_s
        if silent_s >= _SILENT_S:
            detail = f"the engine's host has been silent for {silent_s:g} s"
            return replace(self._status.health, ready=False, detail=detail)
        return self._status.health

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self._status.counts

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self._status.memory

    async def close(self) -> None:
        """Have the host end; its process is killed where this is cancelled."""
        if self._closing is None:
            self.attach()
            self._closing = asyncio.get_running_loop().create_task(self._close())
        try:
            await asyncio.shield(self._closing)
        except asyncio.CancelledError:
            if self.process is not None and not self._closing.done():
                self.process.kill()
            raise

    async def _close(self) -> None:
        reading, watching = self._tasks
        self._channel.send(Close())
        try:
            async with asyncio.timeout(_CLOSE_S):
                await asyncio.shield(reading)
        except TimeoutError:
            log.error("host_not_closed", after_s=_CLOSE_S)
            self._give_up()
            await reading
        watching.cancel()

    async def _read(self) -> None:
        await self._channel.open()
        try:
            while True:
                for message in await self._channel.receive():
                    self.take(message)
                self._num_silent = 0
        except EOFError:
            pass
        except Exception:  # contained: without a reader, requests would wait for ever
            log.exception("host_misunderstood")
            self._give_up()
        self._dead = EngineDead("the connection to the engine's host ended")
        error = EngineDead(await self._exit_of(self.process)) if self.process is not None else self._dead
        self._dead = error
        if self._closing is None:
            log.error("engine_host_lost", detail=str(error))
        now = time.monotonic()
        for stream in self._streams.values():
            stream.fail(error, now) if self._closing is None else stream.abort("shutdown", now)
        self._streams.clear()
        for question in self._questions.values():
            if not question.done():
                question.set_exception(error)
        await self._channel.close()

    async def _watch(self) -> None:
        while self._dead is None:
            if self._demand is not None:
                self._channel.send(WaitingLoad(self._demand()))
            await asyncio.sleep(self._tick_s)
            self._num_silent += 1
            if self._lost_after_s and self._num_silent * self._tick_s > self._lost_after_s:
                log.error("host_silent", silent_s=self._num_silent * self._tick_s)
                self._give_up()
                return

    def take(self, message: ToFrontEnd) -> None:
        """Pass a message on; what no reader waits for any more is dropped."""
        match message:
            case Streamed(number, event):
                stream = self._streams.get(number)
                if stream is not None:
                    stream.put(event)
                    if isinstance(event, Terminal):
                        del self._streams[number]
            case Rejected(number, error):
                if (stream := self._streams.pop(number, None)) is not None:
                    stream.events.put_nowait(error)
                elif (question := self._questions.get(number)) is not None and not question.done():
                    question.set_exception(error)
            case Heads(number) | HeadLoaded(number):
                if (question := self._questions.get(number)) is not None and not question.done():
                    question.set_result(message)
            case Status():
                self._status = message
            case figure if isinstance(figure, Figure):
                if self._observer is not None:
                    with self._contained.of("figures"):
                        self._observer.observe(figure)
            case _:
                raise AssertionError(f"{type(message).__name__} is not a message to a front end")

    async def _ask(self, question: ListHeads | LoadHead) -> Heads | HeadLoaded:
        self.attach()
        self._check_alive()
        answer: asyncio.Future[Heads | HeadLoaded] = asyncio.get_running_loop().create_future()
        self._questions[question.number] = answer
        self._channel.send(question)
        try:
            return await answer
        finally:
            del self._questions[question.number]

    def _check_alive(self) -> None:
        if self._closing is not None:
            raise EngineDead("the engine is closed")
        if self._dead is not None:
            raise self._dead

    def _leave(self, number: int) -> None:
        """Take no further events of a request; what has ended is ignored."""
        if self._streams.pop(number, None) is not None:
            self._channel.send(Leave(number))

    def _expire(self, number: int, error: DeadlineExceeded) -> None:
        """End a request here: its host hangs. One whose terminal event waits for its reader has ended."""
        if (stream := self._streams.get(number)) is not None:
            self._leave(number)
            stream.fail(error, time.monotonic())

    def _give_up(self) -> None:
        if self.process is not None:
            self.process.kill()
        else:
            self._channel.abort()

    async def _exit_of(self, process: HostProcess) -> str:
        """Return how the process ended; `close` limits the time that it has where it closes it."""
        exiting = asyncio.get_running_loop().run_in_executor(None, process.wait)
        limit_s = _EXIT_TICKS * self._tick_s if self._closing is None else None
        await asyncio.wait([exiting], timeout=limit_s)
        if not exiting.done():
            process.kill()
            await exiting
            return "the engine's process outlived its connection and was killed"
        code = exiting.result()
        how = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with status {code}"
        return f"the engine's process ended {how}"
