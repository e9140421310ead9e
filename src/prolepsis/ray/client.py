"""Asks engine replicas through a handle that chooses one of them for each request."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Protocol
from uuid import uuid4

import structlog

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.errors import EngineDead, ReplicaLost
from prolepsis.core.events import Event, Failed, Terminal
from prolepsis.core.plan import SpecPlan
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.client import Demand, EngineHealth, EngineInfo, EngineMember, HeadSwapped, InstalledHead
from prolepsis.engine.event_stream import EventStream
from prolepsis.engine.observer import EngineObserver
from prolepsis.engine.process.messages import Refused
from prolepsis.failover.views import summed_counts, summed_health, summed_memory
from prolepsis.ray.messages import Began, ControlState, Report

REPORT_S = 0.5
"""Seconds between two reports of the replicas."""
_REPORT_TIMEOUT_S = 2.0
_SILENT_S = 5.0
"""Replicas that have not reported for so long are not counted on."""

log = structlog.get_logger(__name__)


class Handle(Protocol):
    """What a client asks of Ray Serve: `ray.serve.handle.DeploymentHandle` behind `prolepsis.ray.serve`."""

    def stream(self, request: GenerateRequest, controls: ControlState) -> "Responses":
        """Have one replica generate."""

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = ...) -> Sequence[object]:
        """Call a method of all replicas; an exception is in the place of the reply of one that is lost or silent."""


class Responses(Protocol):
    """What `EngineReplica.generate` yields for one request. Iterating raises `ReplicaLost` when its replica is gone."""

    def __aiter__(self) -> AsyncIterator[Began | Event | Refused]: ...

    def cancel(self) -> None: ...


class ReplicasClient:
    """An `EngineClient` over all replicas of a deployment; `first` is what they reported when they were started.

    Facts are those of one replica: all are started from one configuration. Their figures add up.
    """

    def __init__(
        self,
        handle: Handle,
        first: Sequence[Report],
        observer: EngineObserver | None = None,
        end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`end` is called by `close`: it ends the replicas where they are this client's own."""
        self._handle = handle
        self._end = end
        self._observer = observer
        self._controls = ControlState(door=uuid4().hex, tokenizer=first[0].status.info.tokenizer)
        self._demand: Callable[[], Demand] | None = None
        self._reports: Sequence[Report] = first
        self._reported_at = time.monotonic()
        self._tasks: set[asyncio.Task[object]] = set()
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

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        """Yield the events of one replica; one that is lost fails the request with `ReplicaLost`."""
        self._begin()
        if self._closed:
            raise EngineDead("the engines are closed")
        stream = EventStream(request, time.monotonic())
        responses = self._handle.stream(request, self._controls)
        event: Event | None = None
        began: Began | None = None
        try:
            async for response in responses:
                if isinstance(response, Refused):
                    raise response.error
                if isinstance(response, Began):
                    began = response
                    continue
                event = response
                stream.count(event)
                yield event
        except ReplicaLost as error:
            if began is not None:
                error.group, error.max_model_len = began.group, began.max_model_len
            event = Failed(request.request_id, error, stream.stats(time.monotonic()))
            yield event
        finally:
            if not isinstance(event, Terminal):
                responses.cancel()

    def abort(self, request_id: str) -> None:
        self._tell("abort", request_id)

    def offer_draft(self, request_id: str, draft: ClientDraft) -> None:
        self._tell("offer_draft", request_id, draft)

    def apply_plan(self, plan: SpecPlan) -> None:
        self._change(plan=plan)

    def stop_run(self, name: str) -> None:
        if name not in self._controls.stopped_runs:
            self._change(stopped_runs=(*self._controls.stopped_runs, name))

    async def heads(self) -> Sequence[InstalledHead]:
        found = [reply for reply in await self._handle.broadcast("heads") if not isinstance(reply, BaseException)]
        if not found:
            raise EngineDead("no replica answers")
        assert isinstance(found[0], Sequence)
        return found[0]

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        """Swap it in all replicas, and in those that start later; raises the first refusal."""
        heads = (*((one, head) for one, head in self._controls.heads if one != proposer), (proposer, name))
        wanted = replace(self._controls, version=self._controls.version + 1, heads=heads)
        replies = await self._handle.broadcast("swap_head", wanted, name, proposer)
        for reply in replies:
            if isinstance(reply, Refused):
                raise reply.error
        swapped = [reply for reply in replies if isinstance(reply, HeadSwapped)]
        if not swapped:
            raise EngineDead("no replica answers")
        self._controls = wanted
        await self.refresh()
        return swapped[0]

    def health(self) -> EngineHealth:
        with suppress(RuntimeError):  # no event loop runs yet
            self._begin()
        silent_s = time.monotonic() - self._reported_at
        found = [report.status.health for report in self._reports]
        if self._closed or silent_s > _SILENT_S:
            detail = "closed" if self._closed else f"no replica has reported for {silent_s:.0f} s"
            return EngineHealth(alive=not self._closed, ready=False, detail=detail)
        return replace(summed_health(found, alive=True), members=tuple(map(_member, self.replicas)))

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return summed_counts([report.status.counts for report in self._reports])

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return summed_memory([report.status.memory for report in self._reports])

    async def close(self) -> None:
        """Ask nothing more."""
        if self._closed:
            return
        self._closed = True
        if self._polling is not None:
            self._polling.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._end is not None:
            await self._end()

    def _begin(self) -> None:
        if self._polling is None and not self._closed:
            self._polling = asyncio.get_running_loop().create_task(self._keep_polling())

    async def _keep_polling(self) -> None:
        while True:
            try:
                await self.refresh()
            except Exception:  # contained: the next one may find them again
                log.exception("replicas_not_asked")
            await asyncio.sleep(REPORT_S)

    async def refresh(self) -> None:
        """Take in a report of each replica that answers."""
        demand = self._demand() if self._demand is not None else None
        replies = await self._handle.broadcast("report", self._controls.door, demand, timeout_s=_REPORT_TIMEOUT_S)
        reports = [reply for reply in replies if isinstance(reply, Report)]
        if not reports:
            return
        started = {report.replica for report in reports} - {report.replica for report in self._reports}
        self._reports, self._reported_at = reports, time.monotonic()
        if started:
            log.info("replicas_started", replicas=sorted(started))
            self._tell("obey", self._controls)
        if self._observer is not None:
            for report in reports:
                for observed in report.observed:
                    observed.tell(self._observer)

    def _change(self, **changes: object) -> None:
        self._controls = replace(self._controls, version=self._controls.version + 1, **changes)  # type: ignore[arg-type]
        self._tell("obey", self._controls)

    def _tell(self, method: str, *arguments: object) -> None:
        """Call a method of all replicas without waiting; before there is an event loop, requests carry what changed."""
        with suppress(RuntimeError):
            task = asyncio.get_running_loop().create_task(self._broadcast(method, *arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _broadcast(self, method: str, *arguments: object) -> None:
        try:
            await self._handle.broadcast(method, *arguments)
        except Exception:  # contained: requests carry what changed, too
            log.exception("replicas_not_told", method=method)


def _member(report: Report) -> EngineMember:
    """Return a replica as its front door shows it."""
    health = report.status.health
    return EngineMember(
        name=report.replica,
        exact_group=report.status.info.exact_group.digest,
        ready=health.ready,
        detail=health.detail,
        num_running=health.num_running,
        num_waiting=health.num_waiting,
        kv_usage=health.kv_usage,
    )
