"""Serves one engine to front ends: to the one that started it, over a socket pair, or to many, over TCP."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from itertools import count

import structlog
from msgspec import structs

from prolepsis.core.engine_client import Demand, EngineClient, EngineHealth
from prolepsis.core.errors import EngineError, ProlepsisError
from prolepsis.core.events import Terminal
from prolepsis.core.figures import Figure
from prolepsis.core.messages import Abort, ApplyPlan, InjectFault, LearnedAcceptance, OfferDraft, SetCorpora, StopRun
from prolepsis.core.plan import SpecPlan, strictest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.containment import Containment
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

STATUS_S = 0.25  # seconds between two statuses
MOST_FIGURES = 20_000  # figures kept while no front end is connected: minutes of steps
_DEMAND_S = 5.0  # older demand does not count: its front end is silent
_END_S = 2.0  # longest wait for the engine to end the requests of a front end that closes

log = structlog.get_logger(__name__)


class KeptFigures:
    """An `EngineObserver` that keeps figures until a front end gets them."""

    def __init__(self) -> None:
        self._kept: deque[Figure] = deque(maxlen=MOST_FIGURES)
        self.num_dropped = 0

    def observe(self, figure: Figure) -> None:
        self.num_dropped += len(self._kept) == MOST_FIGURES
        self._kept.append(figure)

    def take(self) -> list[Figure]:
        """Return the figures since the last call."""
        dropped, self.num_dropped = self.num_dropped, 0
        if dropped:
            log.warning("figures_dropped", number=dropped)
        return [self._kept.popleft() for _ in range(len(self._kept))]


class Host:
    """Belongs to one event loop.

    Each figure goes to one front end, the one that has been connected for the longest. The plans of all front ends
    apply together, so that none undoes what another one stops.
    """

    def __init__(self, client: EngineClient, figures: KeptFigures, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = client
        self.is_leaving = False  # it ends once its requests have ended
        self._figures = figures
        self.clock = clock
        self._connections: dict[_Connection, None] = {}  # the one that has been there for the longest comes first
        self._plans: dict[_Connection, SpecPlan] = {}  # the most recent one is the last
        self._reporting: asyncio.Task[None] | None = None
        self._contained = Containment()
        """Faults of reporting: a front end that hears nothing would take the host for lost."""
        self._counts: tuple[TrafficClassCounts, ...] = ()
        self._memory: tuple[ProposerMemory, ...] = ()
        self._numbers = count()
        self._changed = asyncio.Event()

    @property
    def num_requests(self) -> int:
        return sum(len(connection.work) for connection in self._connections)

    @property
    def num_front_ends(self) -> int:
        return len(self._connections)

    @property
    def demand(self) -> Demand:
        """What waits at all front ends; any thread may ask."""
        oldest = self.clock() - _DEMAND_S
        connections = list(self._connections)
        demands = [connection.demand for connection in connections if connection.demanded_at >= oldest]
        waiting = sum(demand.num_waiting for demand in demands)
        return Demand(max((demand.queue_age_s for demand in demands), default=0.0), waiting)

    async def serve(self, channel: Channel[ToFrontEnd, ToHost], front_end: bytes = b"") -> None:
        """Serve a front end until it closes its connection or is gone.

        `front_end`: its id, whose earlier connection is ended first. Empty: it connects once.
        """
        if self._reporting is None:
            self._reporting = asyncio.create_task(self._keep_reporting())
        earlier = [connection for connection in self._connections if front_end and connection.front_end == front_end]
        for connection in earlier:  # which it has lost, and this host has not; their requests end with them
            connection.abort()
        while any(connection in self._connections for connection in earlier):
            await self._change()
        connection = _Connection(self, channel, front_end, next(self._numbers))
        self._connections[connection] = None
        try:
            self.report()
            await connection.run()
        finally:
            del self._connections[connection]
            self.client.send(InjectFault("none"))  # that a front end injected, and cannot take back any more
            if self._plans.pop(connection, None) is not None and self._plans:  # the last plan holds without front ends
                self._apply_plans()
            self.wake()

    def apply(self, connection: "_Connection", plan: SpecPlan) -> None:
        self._plans.pop(connection, None)
        self._plans[connection] = plan
        self._apply_plans()

    def report(self) -> None:
        """Send a status to each front end, and figures to one; what cannot be read or sent is left out."""
        with self._contained.of("figures"):
            self._counts = tuple(self.client.proposer_counts())
        with self._contained.of("figures"):
            self._memory = tuple(self.client.proposer_memory())
        with self._contained.of("figures"):
            health, info, number = self.client.health(), self.client.info, self.num_requests
            for connection in self._connections:
                elsewhere = number - len(connection.work)
                own = replace(connection.own(health), is_leaving=self.is_leaving, num_elsewhere=elsewhere)
                connection.send(Status(own, info, self._counts, self._memory))
        self.send_figures()

    def send_figures(self) -> None:
        connection = next(iter(self._connections), None)
        if connection is not None:
            for figure in self._figures.take():
                with self._contained.of("figures"):
                    connection.send(figure)

    async def leave(self) -> None:
        """Have front ends choose others, and return when no request is left and all connections have ended."""
        self.is_leaving = True
        self.report()
        while self.num_requests:
            await self._change()
        await self.close()

    async def close(self) -> None:
        """End all connections, after what was sent on them."""
        if self._reporting is not None:
            self._reporting.cancel()
        self.send_figures()
        for connection in list(self._connections):
            await connection.close()
        while self._connections:
            await self._change()

    def wake(self) -> None:
        self._changed.set()

    async def _change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _apply_plans(self) -> None:
        self.client.send(ApplyPlan(strictest(list(self._plans.values()))))

    async def _keep_reporting(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S)
            self.report()


class _Connection:
    """One front end's connection. The engine knows its requests by ids of its own: front ends may use the same ones."""

    def __init__(self, host: Host, channel: Channel[ToFrontEnd, ToHost], front_end: bytes, number: int) -> None:
        self.front_end = front_end
        self.work: dict[int, asyncio.Task[None]] = {}  # requests and questions without an answer so far, by number
        self.demand, self.demanded_at = Demand(0.0, 0), -math.inf
        self.send = channel.send
        self.abort = channel.abort
        self._channel = channel
        self._prefix = f"{number}/"
        self._host = host
        self._client = host.client
        self._request_ids: dict[int, str] = {}  # the engine's ids of requests, likewise

    async def run(self) -> None:
        """Do what the front end asks until it closes or is gone."""
        try:
            await self._channel.open()
            with suppress(EOFError):
                batch: Sequence[ToHost] = ()
                while Close() not in batch:
                    batch = await self._channel.receive()
                    for message in batch:
                        self._take(message)
                await asyncio.sleep(0)  # the first turn of a request that came just before
                for request_id in self._request_ids.values():  # the engine ends them, with its figures
                    self._client.send(Abort(request_id, "shutdown"))
                await self._ended()
        except Exception:  # contained: a message that cannot be read ends this connection, not the others
            log.exception("front_end_misunderstood")
        finally:
            await self.close()
            await self._ended()

    def own(self, health: EngineHealth) -> EngineHealth:
        """Return the health with this front end's requests, by the ids that it knows."""
        known = {engines: engines.removeprefix(self._prefix) for engines in self._request_ids.values()}
        own = [progress for progress in health.reading if progress.request_id in known]
        reading = tuple(replace(progress, request_id=known[progress.request_id]) for progress in own)
        not_begun = tuple(known[name] for name in health.not_begun if name in known)
        return replace(health, not_begun=not_begun, reading=reading)

    async def close(self) -> None:
        for task in self.work.values():
            task.cancel()
        await self._channel.close()

    def _take(self, message: ToHost) -> None:
        match message:
            case Generate() | ListHeads() | LoadHead():
                if isinstance(message, Generate):
                    self._request_ids[message.number] = self._prefix + message.request.request_id
                task = self.work[message.number] = asyncio.create_task(self._answer(message))
                task.add_done_callback(partial(self._forget, message.number))
            case Leave(number):
                if number in self.work:
                    self.work[number].cancel()
            case WaitingLoad(demand):
                self.demand, self.demanded_at = demand, self._host.clock()
            case ApplyPlan(plan):
                self._host.apply(self, plan)
            case Abort(request_id) | OfferDraft(request_id):  # after the first turn of a request that came just before
                known = structs.replace(message, request_id=self._prefix + request_id)
                asyncio.get_running_loop().call_soon(self._client.send, known)
            case StopRun() | SetCorpora() | LearnedAcceptance() | InjectFault():
                self._client.send(message)
            case Close():
                pass
            case _:
                raise AssertionError(f"{type(message).__name__} is not a message to a host")

    def _forget(self, number: int, _: object) -> None:
        del self.work[number]
        self._request_ids.pop(number, None)
        self._host.wake()

    async def _answer(self, question: Generate | ListHeads | LoadHead) -> None:
        try:
            match question:
                case Generate(number, request):
                    known = replace(request, request_id=self._request_ids[number])
                    async with aclosing(self._client.generate(known)) as events:  # type: ignore[type-var]
                        async for event in events:
                            if isinstance(event, Terminal):
                                self._host.send_figures()
                            self.send(Streamed(number, structs.replace(event, request_id=request.request_id)))
                case ListHeads(number):
                    self.send(Heads(number, tuple(await self._client.heads())))
                case LoadHead(number, name, proposer):
                    result = await self._client.swap_head(name, proposer)
                    self._host.report()  # first: the facts are there before the answer
                    self.send(HeadLoaded(number, result))
        except Exception as error:  # the front end raises it where the question was asked
            try:
                self.send(Rejected(question.number, portable(error)))
            except Exception:  # contained: it waits for an answer, which words always are
                log.exception("error_not_sent")
                self.send(Rejected(question.number, EngineError(f"{type(error).__name__}: {error}")))

    async def _ended(self) -> None:
        if self.work:
            await asyncio.wait(self.work.values(), timeout=_END_S)


def portable(error: Exception) -> ProlepsisError:
    """Return an error that another process can rebuild; others travel as text."""
    if isinstance(error, ProlepsisError):
        return error
    log.error("engine_host_error", exc_info=error)
    return EngineError(f"{type(error).__name__}: {error}")
