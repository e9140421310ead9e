"""Runs an engine in a thread of this process, for clients on one event loop."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from prolepsis.core.errors import EngineDead, InvalidParameter
from prolepsis.core.events import Aborted, Event, Terminal
from prolepsis.core.messages import Abort, ApplyPlan, StopRun, Submit
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, RequestStats, TrafficClassCounts
from prolepsis.engine.client import EngineHealth, EngineInfo, HeadSwapped
from prolepsis.engine.step import Engine


class ThreadEngineClient:
    """An `EngineClient`: the engine steps in its own thread and sleeps on its inbox while there is nothing to do.

    Events of a step reach the event loop in one call. `start` is called by the first `generate`, from its loop.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._streams: dict[str, asyncio.Queue[Event]] = {}
        """Of requests whose terminal event is still to come, also those whose reader is gone."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="prolepsis-engine", daemon=True)
        self._closing = threading.Event()
        self._stopped = asyncio.Event()
        self._swapping = asyncio.Lock()
        self._compilers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="compile")

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        if self._closing.is_set():
            raise EngineDead("the engine is closed")
        self.engine.validate(request)
        compiled = await self._compile(request)
        if self._closing.is_set():  # meanwhile
            raise EngineDead("the engine is closed")
        if request.request_id in self._streams:
            raise InvalidParameter(
                f"request_id {request.request_id!r} is in use; allowed: a new one", param="request_id"
            )
        self._start()
        stream = self._streams[request.request_id] = asyncio.Queue()
        self.engine.send(Submit(request, self.engine.clock()))
        event: Event | None = None
        try:
            while not isinstance(event, Terminal):
                event = await stream.get()
                yield event
        finally:
            del compiled  # held until here: the engine must not compile
            if not isinstance(event, Terminal):
                self.abort(request.request_id)

    async def _compile(self, request: GenerateRequest) -> object:
        """Compile on separate threads, so that neither the engine nor the event loop stalls."""
        if request.grammar is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._compilers, self.engine.compile, request)

    def abort(self, request_id: str) -> None:
        self.engine.send(Abort(request_id))

    def apply_plan(self, plan: SpecPlan) -> None:
        self.engine.send(ApplyPlan(plan))

    def stop_run(self, name: str) -> None:
        self.engine.send(StopRun(name))

    async def swap_head(self, name: str) -> HeadSwapped:
        """Load a draft head in a thread of its own and put it in between two steps; one after the other."""
        async with self._swapping:
            if self._closing.is_set():
                raise EngineDead("the engine is closed")
            loop = asyncio.get_running_loop()
            message, done = await loop.run_in_executor(self._compilers, self.engine.load_head, name)
            self._start()
            self.engine.send(message)
            return await asyncio.wrap_future(done)

    def health(self) -> EngineHealth:
        """Return how the engine is; closed counts as not alive."""
        if self._closing.is_set():
            return EngineHealth(alive=False, ready=False, detail="closed")
        return self.engine.health()

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self.engine.speculation.proposers.ledger.counts()

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return self.engine.speculation.proposers.memory()

    async def close(self) -> None:
        if self._closing.is_set():
            return
        self._closing.set()
        self.engine.send(None)
        self._compilers.shutdown(wait=False, cancel_futures=True)
        if self._thread.is_alive():
            await self._stopped.wait()
            self._thread.join()  # it has nothing left to do

    def _start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread.start()
        assert self._loop is asyncio.get_running_loop(), "one client serves one event loop"

    def _run(self) -> None:
        engine = self.engine
        try:
            while not self._closing.is_set():
                if not engine.has_work:
                    engine.wait()
                self._hand_over(engine.step())
        except BaseException as error:  # contained: waiting callers must learn that nothing comes
            engine.die(error)
        self._hand_over(engine.abort_all("shutdown"))
        engine.close_heads()
        self._call(self._end)

    def _hand_over(self, events: list[Event]) -> None:
        if events:
            self._call(lambda: self._deliver(events))

    def _call(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None, "the thread runs after start"
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed: no reader is left
            self._closing.set()

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self._streams[event.request_id].put_nowait(event)
            if isinstance(event, Terminal):
                del self._streams[event.request_id]

    def _end(self) -> None:
        """The thread ends: end the requests that were sent too late for the engine."""
        for request_id, stream in self._streams.items():
            stream.put_nowait(Aborted(request_id, RequestStats(), "shutdown"))
        self._stopped.set()
