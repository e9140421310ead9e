"""Asks engine replicas: chooses one of them for each request, by its prefix and by what they have to do."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol
from uuid import uuid4

import structlog

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.errors import DeadlineExceeded, EngineDead, EngineError, InvalidParameter
from prolepsis.core.events import Event, Terminal
from prolepsis.core.messages import Abort, ApplyPlan, Control, OfferDraft, StopRun
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.client import Demand, EngineHealth, EngineInfo, EngineMember, HeadSwapped, InstalledHead
from prolepsis.engine.containment import Containment
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.messages import Observed, Refused, tell_all
from prolepsis.failover.views import summed_counts, summed_health, summed_memory
from prolepsis.ray.affinity import PrefixRouter, Router
from prolepsis.ray.link import ReplicaLink
from prolepsis.ray.messages import ControlState, Report

REPORT_S = 0.5
"""Seconds between two reports of the replicas."""
_REPORT_TIMEOUT_S = 2.0
_SILENT_S = 5.0
"""Replicas that have not reported for so long are not counted on."""
_DEADLINE_GRACE_S = 0.1
"""The replica ends a request at its deadline, with all its figures; later it is ended without them."""
_SHORT_S = 0.001
"""A wait that is no wait; and a deadline for an engine to refuse, of a request that has used up its time."""

log = structlog.get_logger(__name__)


class Handle(Protocol):
    """What a client asks of Ray Serve: `ray.serve.handle.DeploymentHandle` behind `prolepsis.ray.serve`."""

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = ...) -> Sequence[object]:
        """Call a method of all replicas; an exception is in the place of the reply of one that is lost or silent."""


class ReplicasClient:
    """An `EngineClient` over all replicas of a deployment; `first` is what they reported when they were started.

    Facts are those of one replica: all are started from one configuration. Their figures add up.
    Ray Serve says which replicas there are. Requests and tokens go over a connection of our own to each.
    """

    def __init__(
        self,
        handle: Handle,
        first: Sequence[Report],
        observer: EngineObserver | None = None,
        end: Callable[[], Awaitable[None]] | None = None,
        router: Router | None = None,
    ) -> None:
        """`end` is called by `close`: it ends the replicas where they are this client's own."""
        self._handle = handle
        self._end = end
        self._observer = observer
        self._contained = Containment()
        self._router = router or PrefixRouter()
        self._controls = ControlState(door=uuid4().hex)
        self._swaps = count(1)
        self._tokenizer = first[0].status.info.tokenizer
        """What its token ids mean, whichever replicas come later."""
        self._demand: Callable[[], Demand] | None = None
        self._reports: Sequence[Report] = first
        self._reported_at = time.monotonic()
        self._health: EngineHealth | None = None
        """Summed up from the reports when it is asked for: several times a request."""
        self._received: dict[str, int] = {}
        """How many calls of its observer each replica has told."""
        self._num_unreported: dict[str, int] = {}
        """How many of them each has dropped."""
        self._streams: dict[str, EventStream] = {}
        """By request."""
        self._serving: dict[str, ReplicaLink] = {}
        """Likewise, of those that have a replica."""
        self._links: dict[str, ReplicaLink] = {}
        """By replica."""
        self._holding: dict[str, asyncio.Task[None]] = {}
        """Likewise: what connects to it and holds the connection."""
        self._unreached: dict[str, str] = {}
        """Replicas to which there is no connection, and why."""
        self._changed = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def info(self) -> EngineInfo:
        return self._reports[0].status.info

    def follow(self, demand: Callable[[], Demand]) -> None:
        """Tell the replicas what waits for them, so that their number can follow it."""
        self._demand = demand

    @property
    def replicas(self) -> Sequence[Report]:
        """The last report of each replica."""
        return self._reports

    async def connected(self) -> None:
        """Wait until it is known of each replica whether it can be reached."""
        self._begin()
        while any(one.replica not in {**self._links, **self._unreached} for one in self._reports):
            self._changed.clear()
            await self._changed.wait()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one replica; one that is lost fails the request with `ReplicaLost`.

        Waits while no replica is there. Raises `EngineError` where those that are there have another tokenizer.
        """
        self._begin()
        if self._closed:
            raise EngineDead("the engines are closed")
        if request.request_id in self._streams:
            message = f"request_id {request.request_id!r} is in use; allowed: a new one"
            raise InvalidParameter(message, param="request_id")
        stream = self._streams[request.request_id] = EventStream(request, time.monotonic())
        asked: tuple[ReplicaLink, int] | None = None
        event: Event | None = None
        try:
            with stream.deadline(_DEADLINE_GRACE_S, partial(self._fail, stream)):
                link = await self._placed(stream)
                if link is not None:
                    self._serving[request.request_id] = link
                    asked = link, link.ask(_left(stream), stream)
                while not isinstance(event, Terminal):
                    yield (event := await stream.next())
        finally:
            del self._streams[request.request_id]
            self._serving.pop(request.request_id, None)
            if asked is not None:
                link, number = asked
                link.leave(number)

    def send(self, control: Control) -> None:
        match control:
            case ApplyPlan(plan):
                self._change(replace(self._controls, plan=plan))
            case StopRun(run) if run not in self._controls.stopped_runs:
                self._change(replace(self._controls, stopped_runs=(*self._controls.stopped_runs, run)))
            case Abort(request_id) | OfferDraft(request_id) if request_id in self._serving:
                self._serving[request_id].tell(control)
            case Abort(request_id) if request_id in self._streams:
                self._end_here(self._streams[request_id], "client")

    async def heads(self) -> Sequence[InstalledHead]:
        found = [reply for reply in await self._handle.broadcast("heads") if not isinstance(reply, BaseException)]
        if not found:
            raise EngineDead("no replica answers")
        assert isinstance(found[0], Sequence)
        return found[0]

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Swap it in all replicas, and in those that start later; one that refuses leaves all with the one before."""
        ask = partial(self._handle.broadcast, "swap_head", self._controls.door)
        replies = await ask(swap := next(self._swaps), proposer, name)
        swapped = [reply for reply in replies if isinstance(reply, HeadSwapped)]
        refused = next((reply.error for reply in replies if isinstance(reply, Refused)), None)
        if refused is not None and swapped:
            before = dict(self._controls.heads).get(proposer) or swapped[0].previous or "none"
            log.warning("head_swapped_back", proposer=proposer, head=before, error=str(refused))
            await ask(next(self._swaps), proposer, before)
        if refused is not None:
            raise refused
        if not swapped:
            raise EngineDead("no replica answers")
        self._change(self._controls.with_head(swap, proposer, name))
        await self.refresh()
        return swapped[0]

    def health(self) -> EngineHealth:
        with suppress(RuntimeError):  # no event loop runs yet
            self._begin()
        silent_s = time.monotonic() - self._reported_at
        if self._closed or silent_s > _SILENT_S:
            detail = "closed" if self._closed else f"no replica has reported for {silent_s:.0f} s"
            return EngineHealth(alive=not self._closed, ready=False, detail=detail)
        if self._health is None:
            self._health = self._summed()
        return self._health

    def _summed(self) -> EngineHealth:
        found = [report.status.health for report in self._reports if report.replica not in self._unreached]
        health = summed_health(found, alive=True, absences=list(self._unreached.values()))
        return replace(health, members=tuple(map(self._member, self._reports)))

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return summed_counts([report.status.counts for report in self._reports])

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return summed_memory([report.status.memory for report in self._reports])

    async def close(self) -> None:
        """End the requests and ask nothing more."""
        if self._closed:
            return
        self._closed = True
        for stream in self._streams.values():
            self._end_here(stream, "shutdown")
        tasks = [*self._holding.values(), *([self._polling] if self._polling is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._end is not None:
            await self._end()

    def _begin(self) -> None:
        if self._polling is None and not self._closed:
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())
            self._connect()

    async def _keep_polling(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:  # contained: the next one may find them again
                log.exception("replicas_not_asked")
                self._connect()
            await asyncio.sleep(REPORT_S)

    async def refresh(self) -> None:
        """Take in a report of each replica that answers."""
        demand = self._demand() if self._demand is not None else None
        asks = self._controls.door, demand, dict(self._received)
        replies = await self._handle.broadcast("report", *asks, timeout_s=_REPORT_TIMEOUT_S)
        reports = [reply for reply in replies if isinstance(reply, Report)]
        if reports:
            self._reports, self._reported_at, self._health = reports, time.monotonic(), None
        self._connect()
        for report in reports:
            tell_all(self._news(report), self._observer, self._contained)

    def _news(self, report: Report) -> Sequence[Observed]:
        """Return what its observer was told and this one was not: a reply may be lost, or overtake another."""
        if num_calls := report.num_unreported - self._num_unreported.get(report.replica, 0):
            self._num_unreported[report.replica] = report.num_unreported
            log.warning("replica_dropped_figures", replica=report.replica, num_calls=num_calls)
        num_received = self._received.get(report.replica, 0)
        self._received[report.replica] = max(num_received, report.first + len(report.observed))
        return report.observed[max(0, num_received - report.first) :]

    def _connect(self) -> None:
        """Connect to the replicas to which there is no connection."""
        listed = {report.replica for report in self._reports}
        self._unreached = {name: why for name, why in self._unreached.items() if name in listed}
        for report in self._reports:
            if report.replica not in self._holding:
                self._holding[report.replica] = asyncio.create_task(self._hold(report))

    async def _hold(self, report: Report) -> None:
        """Connect to a replica and hold the connection until it ends."""
        name = report.replica
        try:
            link = await ReplicaLink.to(report.address, self._observer)
            link.tell(self._controls)
            self._links[name] = link
            if self._unreached.pop(name, None):
                self._health = None
            self._changed.set()
            log.info("replica_connected", replica=name)
            log.info("replica_disconnected", replica=name, detail=await link.run())
        except Exception as error:  # contained: its requests have failed, and another connection may do better
            if name not in self._unreached:
                is_fault = not isinstance(error, OSError | EOFError)
                where = report.address.host
                log.error("replica_not_reached", replica=name, host=where, error=repr(error), exc_info=is_fault)
            self._unreached[name], self._health = f"{name} cannot be reached: {error!r}", None
            self._changed.set()
        finally:
            del self._holding[name]
            self._links.pop(name, None)

    async def _placed(self, stream: EventStream) -> ReplicaLink | None:
        """Return the connection to ask, and wait while there is none. None: the request ended meanwhile."""
        while stream.events.empty():
            link = self._choose(stream.request)
            if link is not None:
                return link
            self._changed.clear()
            await self._changed.wait()
        return None

    def _choose(self, request: GenerateRequest) -> ReplicaLink | None:
        """Return a connection to a replica that takes requests; continuations stay in their group where they can."""
        links = {name: link for name, link in self._links.items() if link.takes_requests}
        tokenizer, group = self._tokenizer, request.continue_from and request.continue_from.group
        fitting = {name: link for name, link in links.items() if link.hello.group.tokenizer == tokenizer}
        if links and not fitting:
            found = ", ".join({link.hello.group.tokenizer for link in links.values()})
            raise EngineError(f"the front door has the tokenizer {tokenizer}, the replicas have {found}")
        if not fitting:
            return None
        same = {name: link for name, link in fitting.items() if link.hello.group == group}
        loads = {name: link.load for name, link in (same or fitting).items()}
        name = self._router.ranked(request, loads)[0]
        self._router.sent(request, name)
        return links[name]

    def _fail(self, stream: EventStream, error: DeadlineExceeded) -> None:
        """End a request whose replica hangs, or that has none."""
        stream.fail(error, time.monotonic())
        self._changed.set()

    def _end_here(self, stream: EventStream, reason: str) -> None:
        """End a request without a word of its replica."""
        stream.abort(reason, time.monotonic())
        self._changed.set()

    def _change(self, controls: ControlState) -> None:
        """Tell all replicas; those that start later learn it when they are connected."""
        self._controls = replace(controls, version=self._controls.version + 1)
        for link in self._links.values():
            link.tell(self._controls)

    def _member(self, report: Report) -> EngineMember:
        """Return a replica as its front door shows it."""
        health, unreached = report.status.health, self._unreached.get(report.replica)
        return EngineMember(
            name=report.replica,
            exact_group=report.status.info.exact_group.digest,
            ready=health.ready and unreached is None,
            detail=unreached or health.detail,
            num_running=health.num_running,
            num_waiting=health.num_waiting,
            kv_usage=health.kv_usage,
        )


def _left(stream: EventStream) -> GenerateRequest:
    """Return the request with what is left of its time, where it has waited for a replica."""
    request, waited_s = stream.request, time.monotonic() - stream.arrival
    if request.deadline_s is None or waited_s < _SHORT_S:
        return request
    return replace(request, deadline_s=max(_SHORT_S, request.deadline_s - waited_s))
