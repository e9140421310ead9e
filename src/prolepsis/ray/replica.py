"""One engine of many: what runs in a replica's process. Ray Serve calls it; nothing here knows of Ray."""

import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from uuid import uuid4

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.errors import EngineError, ProlepsisError
from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.client import Demand, EngineClient, HeadSwapped, InstalledHead
from prolepsis.engine.process.messages import Observed, Refused, Status
from prolepsis.engine.process.recorder import Recorder
from prolepsis.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.ray.messages import Began, ControlState, Report

_MOST_OBSERVED = 20_000
"""Calls kept for the next report: some seconds of steps."""
_DEMAND_S = 5.0
"""A front door that has not told its demand for so long is gone."""


class Notes(Recorder):
    """An `EngineObserver` that keeps what it is told, for reports."""

    def __init__(self) -> None:
        super().__init__(self._keep)
        self._kept: deque[Observed] = deque(maxlen=_MOST_OBSERVED)
        self.num_lost = 0

    def take(self) -> tuple[Observed, ...]:
        """Return what was kept since the last call."""
        return tuple(self._kept.popleft() for _ in range(len(self._kept)))

    def _keep(self, observed: Observed) -> None:
        self.num_lost += len(self._kept) == _MOST_OBSERVED
        self._kept.append(observed)


class EngineReplica:
    """Serves requests of front doors with one engine.

    Its methods are the protocol: `generate` yields `Began` and a request's events, or `Refused`; `obey`, `abort`,
    `offer_draft`, `heads`, `swap_head` and `report` are called on all replicas.
    """

    def __init__(self, client: EngineClient, notes: Notes, clock: Callable[[], float] = time.monotonic) -> None:
        self.name = f"{os.uname().nodename}-{os.getpid()}-{uuid4().hex[:8]}"
        self._client = client
        self._notes = notes
        self.obeyed: dict[str, ControlState] = {}
        """By front door."""
        self._clock = clock
        self._demands: dict[str, tuple[float, Demand]] = {}
        """By front door, with the time when it was told."""

    async def generate(
        self, request: GenerateRequest, controls: ControlState
    ) -> AsyncGenerator[Began | Event | Refused, None]:
        info = self._client.info
        if controls.tokenizer and controls.tokenizer != info.tokenizer:
            message = f"the front door has the tokenizer {controls.tokenizer}, the replica has {info.tokenizer}"
            yield Refused(0, EngineError(message))
            return
        await self.obey(controls)
        yield Began(info.exact_group, info.max_model_len)
        try:
            async with aclosing(self._client.generate(request)) as events:  # type: ignore[type-var]
                async for event in events:
                    yield event
        except ProlepsisError as error:
            yield Refused(0, error)

    async def obey(self, controls: ControlState) -> None:
        """Bring the engine to what a front door has told; what it has obeyed before costs nothing."""
        before = self.obeyed.get(controls.door, ControlState())
        if controls.version <= before.version:
            return
        self.obeyed[controls.door] = controls
        if controls.plan is not None and controls.plan != before.plan:
            self._client.apply_plan(controls.plan)
        for run in controls.stopped_runs:
            if run not in before.stopped_runs:
                self._client.stop_run(run)
        for proposer, name in controls.heads:
            if (proposer, name) not in before.heads:
                await self._client.swap_head(name, proposer)

    async def abort(self, request_id: str) -> None:
        self._client.abort(request_id)

    async def offer_draft(self, request_id: str, draft: ClientDraft) -> None:
        self._client.offer_draft(request_id, draft)

    async def heads(self) -> list[InstalledHead]:
        return list(await self._client.heads())

    async def swap_head(self, controls: ControlState, name: str, proposer: str) -> HeadSwapped | Refused:
        """Swap a head; `controls` says so too, for replicas that start later."""
        try:
            swapped = await self._client.swap_head(name, proposer)  # type: ignore[arg-type]
        except ProlepsisError as error:
            return Refused(0, error)
        self.obeyed[controls.door] = controls
        return swapped

    async def report(self, door: str = "", demand: Demand | None = None) -> Report:
        """Return how the replica is; `demand` is what waits at the front door that asks."""
        if demand is not None:
            self._demands[door] = self._clock(), demand
        return Report(self.name, Status.of(self._client), self._notes.take(), self._notes.num_lost)

    def load(self) -> dict[str, float]:
        """Return what decides on the number of replicas (`prolepsis.ray.autoscaling`)."""
        oldest, health = self._clock() - _DEMAND_S, self._client.health()
        self._demands = {door: told for door, told in self._demands.items() if told[0] >= oldest}
        demands = [demand for _, demand in self._demands.values()]
        return {
            IN_FLIGHT: health.num_running + health.num_waiting,
            WAITING: sum(demand.num_waiting for demand in demands),
            QUEUE_AGE_S: max((demand.queue_age_s for demand in demands), default=0.0),
        }

    async def close(self) -> None:
        """End the engine; its requests end with `Aborted`."""
        await self._client.close()

    def check_health(self) -> None:
        """Raise if the engine cannot serve any more: the replica is then replaced."""
        health = self._client.health()
        if not health.alive:
            raise RuntimeError(health.detail)
