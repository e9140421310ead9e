"""Runs an engine in a thread of this process, for clients on one event loop."""

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from weakref import WeakValueDictionary

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import DeadlineExceeded, EngineDead, InvalidParameter, ProlepsisError
from prolepsis.core.events import Aborted, Event, Terminal, Tokens
from prolepsis.core.kill_scope import tenant_scope
from prolepsis.core.messages import Abort, Control, Submit
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, RequestStats, TrafficClassCounts
from prolepsis.engine.drafting.call_watch import Superseded, WatchedCall
from prolepsis.engine.event_stream import EventStream, deliver
from prolepsis.engine.step import Engine
from prolepsis.engine.watchdog import Watchdog

_DEADLINE_GRACE_S = 0.03
"""The engine ends a request at its deadline between two steps, with all its figures; later it is ended without them."""
_WATCHDOG_S = 1.0  # most that the watchdog's thread is waited for: it looks up every few hundredths of a second


INTERVAL_S = 0.010
"""Longest time for which tokens wait for tokens of later steps; longer steps are handed over one by one."""


class Handover:
    """Brings the events of an engine's steps from its thread to the event loop of their readers.

    To wake the loop takes a core from the pass that is under way, and the loop finds its code and data out of the
    caches, so waking it costs as much as many events. Where steps follow each other within `INTERVAL_S`, the loop
    therefore looks for what they brought only that often. First and last events of a request wake it at once. `put` and
    `call` are for other threads than the loop's.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Sequence[Event]], None]) -> None:
        """`deliver` gets the events of each step, in their order, on the loop."""
        self.loop = loop
        self._deliver = deliver
        self._waiting: deque[Sequence[Event]] = deque()
        self.num_paced = 0
        """Requests under way whose events wait for nothing: their reader spreads tokens over the time of their step."""
        self._is_coming = False  # the loop is going to look for what waits
        self._looked_at = -INTERVAL_S
        self._timer: asyncio.TimerHandle | None = None

    def put(self, events: Sequence[Event]) -> None:
        """Hand over the events of a step; raises `RuntimeError` if the loop is closed."""
        self._waiting.append(events)
        is_urgent = any(not isinstance(event, Tokens) or event.position == 0 for event in events)
        if not self._is_coming or self.num_paced or is_urgent:
            self._is_coming = True
            self.loop.call_soon_threadsafe(self._look)

    def call(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop, after all that was put; raises `RuntimeError` if the loop is closed."""
        self.loop.call_soon_threadsafe(self._look)
        self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Deliver, as the engine asks for it, and look again if the last time is a short while ago."""
        if self._timer is not None:
            self._timer.cancel()
        self._take(again=self.loop.time() < self._looked_at + INTERVAL_S)

    def _take(self, *, again: bool) -> None:
        self._looked_at = self.loop.time()
        self._timer = self.loop.call_later(INTERVAL_S, lambda: self._take(again=bool(self._waiting))) if again else None
        self._is_coming = again  # before it takes: what is put from here on is taken too, or wakes the loop
        while self._waiting:
            self._deliver(self._waiting.popleft())


class ThreadEngineClient:
    """An `EngineClient`: the engine steps in its own thread and sleeps on its inbox while there is nothing to do.

    Events reach the event loop by a `Handover`. `start` is called by the first `generate`, from its loop.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._streams: dict[str, EventStream] = {}
        """Streams of requests without a terminal event so far, including those without a reader."""
        self._left: set[str] = set()
        """Requests that got their terminal event here, and may still get one of the engine."""
        self._handover: Handover | None = None  # to the loop of the first `generate`; None before that
        self.thread = self._new_thread()
        calls = engine.speculation.proposers.watch
        self.watchdog = Watchdog(calls, engine.watch, replace=self._replace_thread, give_up=self._give_up)
        self._watching = threading.Thread(target=self.watchdog.watch, name="prolepsis-watchdog", daemon=True)
        self._closing = threading.Event()
        self._stopped = asyncio.Event()
        self._swapping = asyncio.Lock()
        self._compilers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="compile")
        self._compiling: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """The turn of each tenant whose grammars are compiled."""

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self._check_alive()
        self.engine.validate(request)
        compiled = await self._compile(request)
        self._check_alive()  # again: the engine may have ended meanwhile
        if request.request_id in self._streams or request.request_id in self._left:
            raise InvalidParameter(
                f"request_id {request.request_id!r} is in use; allowed: a new one", param="request_id"
            )
        handover = self._start()
        stream = self._streams[request.request_id] = EventStream(request, self.engine.clock())
        self.engine.send(Submit(request, stream.arrival))
        event: Event | None = None
        handover.num_paced += request.paced
        try:
            with stream.deadline(_DEADLINE_GRACE_S, partial(self._leave, request.request_id)):
                while not isinstance(event, Terminal):
                    yield (event := await stream.next())
        finally:
            handover.num_paced -= request.paced
            del compiled  # held until here: the engine must not compile
            if not isinstance(event, Terminal):
                self.send(Abort(request.request_id))

    def _check_alive(self) -> None:
        if self._closing.is_set():
            raise EngineDead("the engine is closed")
        if self.engine.dead is not None:
            raise self.engine.dead

    async def _compile(self, request: GenerateRequest) -> object:
        """Compile on other threads, so that neither engine nor event loop stalls, one grammar of a tenant at a time."""
        if request.grammar is None:
            return None
        turn = self._compiling.setdefault(tenant_scope(request.kill_scopes), asyncio.Lock())
        try:
            async with asyncio.timeout(request.deadline_s):
                await turn.acquire()
                try:
                    self._check_alive()  # again: a closed client's threads take no work
                    work = asyncio.get_running_loop().run_in_executor(self._compilers, self.engine.compile, request)
                except BaseException:
                    turn.release()
                    raise
                work.add_done_callback(partial(_end_turn, turn))  # a client that leaves does not end the thread's work
                try:
                    return await asyncio.shield(work)
                except asyncio.CancelledError:
                    waiter = asyncio.current_task()
                    if work.cancelled() and not (waiter and waiter.cancelling()):
                        raise EngineDead("the engine is closed") from None
                    raise
        except TimeoutError:
            message = f"its grammar was not compiled in {request.deadline_s:.3f} s"
            raise DeadlineExceeded(message) from None

    def send(self, control: Control) -> None:
        self.engine.send(control)

    async def heads(self) -> Sequence[InstalledHead]:
        return await asyncio.get_running_loop().run_in_executor(self._compilers, self.engine.installed_heads)

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Load a draft head in a thread of its own and put it in between two steps; one after the other."""
        async with self._swapping:
            self._check_alive()
            loop = asyncio.get_running_loop()
            message, done = await loop.run_in_executor(self._compilers, self.engine.load_head, name, proposer)
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
        if self._handover is not None:
            await self._stopped.wait()
            self._handover.close()
            if not self.watchdog.gave_up:
                self.thread.join()  # it has nothing left to do
        self.watchdog.stop()
        if self._handover is not None:
            self._watching.join(_WATCHDOG_S)  # it refers to the engine, whose memory the next one may need

    def _leave(self, request_id: str, error: ProlepsisError) -> None:
        """End a request here, without the engine; what still comes for it is dropped."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._left.add(request_id)
            self.engine.send(Abort(request_id, error.code))
            stream.fail(error, self.engine.clock())

    def _start(self) -> Handover:
        if self._handover is None:
            self._handover = Handover(asyncio.get_running_loop(), self._deliver)
            self.thread.start()
            self._watching.start()
        assert self._handover.loop is asyncio.get_running_loop(), "one client serves one event loop"
        return self._handover

    def _new_thread(self, overdue: WatchedCall | None = None) -> threading.Thread:
        return threading.Thread(target=self._run, args=(overdue,), name="prolepsis-engine", daemon=True)

    def _replace_thread(self, overdue: WatchedCall) -> None:
        """Continue in another thread: the engine's is in an overdue call."""
        self.thread = self._new_thread(overdue)
        self.thread.start()

    def _give_up(self, error: EngineDead) -> None:
        """The engine's thread will not come back: end all requests and swaps of heads from here."""
        self.engine.dead = error
        self.engine.close_heads()

        def leave_all() -> None:
            for request_id in list(self._streams):
                self._leave(request_id, error)
            self._stopped.set()

        self._send(lambda handover: handover.call(leave_all))

    def _run(self, overdue: WatchedCall | None) -> None:
        engine = self.engine
        try:
            if overdue is not None:
                engine.resume(overdue)
                self._hand_over(engine.step())  # also what the last one left
            while not self._closing.is_set():
                if not engine.has_work:
                    engine.wait()
                self._hand_over(engine.step())
        except Superseded:
            return
        except BaseException as error:  # contained: waiting callers must learn that nothing comes
            engine.die(error)
        self._hand_over(engine.abort_all("shutdown"))
        engine.close()
        self._send(lambda handover: handover.call(self._end))

    def _hand_over(self, events: list[Event]) -> None:
        if events:
            self._send(lambda handover: handover.put(events))

    def _send(self, send: Callable[[Handover], None]) -> None:
        assert self._handover is not None, "the thread runs after start"
        try:
            send(self._handover)
        except RuntimeError:  # the loop is closed: no reader is left
            self._closing.set()

    def _deliver(self, events: Sequence[Event]) -> None:
        self._left -= deliver(events, self._streams)

    def _end(self) -> None:
        """The thread ends: end the requests that were sent too late for the engine."""
        for request_id, stream in self._streams.items():
            stream.put(Aborted(request_id, RequestStats(), "shutdown"))
        self._stopped.set()


def _end_turn(turn: asyncio.Lock, work: "asyncio.Future[object]") -> None:
    turn.release()
    if not work.cancelled():
        work.exception()  # seen, also where no caller waits for it any more
