"""A rehearsed engine as its clients see it, on an event loop of virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Sequence

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineHealth, EngineInfo, HeadSwapped, InstalledHead
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Event, Terminal
from prolepsis.core.messages import Abort, Control, Submit
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import ProposerMemory, TrafficClassCounts
from prolepsis.engine.event_stream import EventStream, deliver
from prolepsis.lab.virtual_engine.engine import Rehearsed

_HANDOVER_S = 1e-6
"""Between two steps: the loop's time moves on when nothing is left to do, so what readers of a step's events ask for at
once is seen by the next step, as in an engine's thread, which waits for the loop meanwhile."""


class RehearsedClient:
    """An `EngineClient`. A step takes its time on the loop's clock: what is sent meanwhile is seen by the next one."""

    def __init__(self, rehearsed: Rehearsed) -> None:
        self.engine = rehearsed.engine
        self._clock = rehearsed.clock
        self._streams: dict[str, EventStream] = {}
        self._sent = asyncio.Event()
        self._steps: asyncio.Task[None] | None = None

    @property
    def info(self) -> EngineInfo:
        return self.engine.info

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        self.engine.validate(request)
        loop = asyncio.get_running_loop()
        stream = self._streams[request.request_id] = EventStream(request, loop.time())
        self.send(Submit(request, stream.arrival))
        event: Event | None = None
        try:
            while not isinstance(event, Terminal):
                yield (event := await stream.next())
        finally:
            if not isinstance(event, Terminal):
                self.send(Abort(request.request_id))

    async def heads(self) -> Sequence[InstalledHead]:
        return ()

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        raise InvalidParameter("a rehearsal has the heads of its recording", param="draft_head")

    def health(self) -> EngineHealth:
        return self.engine.health()

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        return self.engine.speculation.proposers.ledger.counts()

    def proposer_memory(self) -> Sequence[ProposerMemory]:
        return ()

    async def close(self) -> None:
        if self._steps is not None:
            self._steps.cancel()

    def send(self, control: Control | Submit) -> None:
        self.engine.send(control)
        self._sent.set()
        if self._steps is None:
            self._steps = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        loop, engine = asyncio.get_running_loop(), self.engine
        while True:
            while engine.has_work:
                self._clock.now = loop.time()
                events = engine.step()
                await asyncio.sleep(self._clock.now - loop.time())
                deliver(events, self._streams)
                await asyncio.sleep(_HANDOVER_S)
            self._sent.clear()
            await self._sent.wait()
