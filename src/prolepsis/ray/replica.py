"""One engine of many: what runs in a replica's process. Ray Serve and front doors ask it; nothing here knows of Ray."""

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from prolepsis.core.config import HeadProposerName
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.messages import ApplyPlan, StopRun
from prolepsis.core.plan import SpecPlan, strictest
from prolepsis.engine.client import Demand, EngineClient, HeadSwapped, InstalledHead
from prolepsis.engine.process.messages import Observed, Refused, Status
from prolepsis.engine.process.recorder import Recorder
from prolepsis.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.ray.listener import Listener
from prolepsis.ray.messages import ControlState, Hello, Report

MOST_OBSERVED = 20_000
"""Calls kept for the next report: some seconds of steps."""
_GONE_S = 5.0
"""A front door that has not asked for so long is gone."""


@dataclass(slots=True)
class _Told:
    """What a front door was told, and may not have."""

    first: int
    """Number of the first of `notes`."""
    at: float
    notes: list[Observed] = field(default_factory=list)


class Notes(Recorder):
    """An `EngineObserver` that keeps what it is told, for reports."""

    def __init__(self) -> None:
        super().__init__(self._keep)
        self._kept: deque[Observed] = deque(maxlen=MOST_OBSERVED)
        self._told: dict[str, _Told] = {}
        """By front door."""
        self.num_lost = 0

    def report(self, door: str, num_received: int, now: float) -> tuple[int, tuple[Observed, ...]]:
        """Return what a front door does not have, of which it has `num_received`, and the number of the first."""
        for name in [name for name, told in self._told.items() if name != door and now - told.at > _GONE_S]:
            self.num_lost += len(self._told.pop(name).notes)
        told = self._told.setdefault(door, _Told(num_received, now))
        told.at = now
        told.notes += self.take()
        due = max(told.first, num_received)
        first = max(due, told.first + len(told.notes) - MOST_OBSERVED)
        self.num_lost += first - due
        told.notes, told.first = told.notes[first - told.first :], first
        return first, tuple(told.notes)

    def take(self) -> tuple[Observed, ...]:
        """Return what was kept since the last call."""
        return tuple(self._kept.popleft() for _ in range(len(self._kept)))

    def _keep(self, observed: Observed) -> None:
        self.num_lost += len(self._kept) == MOST_OBSERVED
        self._kept.append(observed)


class EngineReplica:
    """Serves requests of front doors with one engine.

    Requests come over connections (`Listener`); `heads`, `swap_head` and `report` are called on all replicas.
    """

    def __init__(
        self,
        client: EngineClient,
        notes: Notes,
        clock: Callable[[], float] = time.monotonic,
        *,
        host: str = "127.0.0.1",
    ) -> None:
        """`host`: the address of this machine at which front doors reach it."""
        self.name = f"{os.uname().nodename}-{os.getpid()}-{uuid4().hex[:8]}"
        self.client = client
        self.listener = Listener(self, host)
        self.notes = notes
        self.obeyed: dict[str, ControlState] = {}
        """By front door."""
        self._plans: dict[str, SpecPlan] = {}
        """By front door that is there, the one that told its plan last at the end."""
        self._clock = clock
        self._demands: dict[str, tuple[float, Demand]] = {}
        """By front door, with the time when it was told."""

    def hello(self) -> Hello:
        return Hello(self.client.info.exact_group, self.client.info.max_model_len)

    async def obey(self, controls: ControlState) -> None:
        """Bring the engine to what a front door has told; what it has obeyed before costs nothing."""
        before = self.obeyed.get(controls.door, ControlState())
        if controls.version >= before.version and controls.plan is not None:
            self._follow_plan(controls.door, controls.plan)
        if controls.version <= before.version:
            return
        if controls.swap <= before.swap:  # it was told before the last swap was asked for, or names it again
            controls = replace(controls, heads=before.heads, swap=before.swap)
        self.obeyed[controls.door] = controls
        for run in controls.stopped_runs:
            if run not in before.stopped_runs:
                self.client.send(StopRun(run))
        for proposer, name in controls.heads:
            if (proposer, name) not in before.heads:
                await self.client.swap_head(name, proposer)

    def _follow_plan(self, door: str, plan: SpecPlan) -> None:
        """Apply the plans of all front doors: none undoes what another one stops."""
        if plan != self._plans.pop(door, None):
            self.client.send(ApplyPlan(strictest([*self._plans.values(), plan])))
        self._plans[door] = plan

    def leave_door(self, door: str) -> None:
        """A front door has no connection any more: the plans of the others hold, or without others still its own."""
        if self._plans.pop(door, None) is not None and self._plans:
            self.client.send(ApplyPlan(strictest(list(self._plans.values()))))

    async def heads(self) -> list[InstalledHead]:
        return list(await self.client.heads())

    async def swap_head(self, door: str, swap: int, proposer: HeadProposerName, name: str) -> HeadSwapped | Refused:
        """Swap a head; what the front door tells next names it too, for replicas that start later."""
        try:
            swapped = await self.client.swap_head(name, proposer)
        except ProlepsisError as error:
            return Refused(0, error)
        self.obeyed[door] = self.obeyed.get(door, ControlState(door)).with_head(swap, proposer, name)
        return swapped

    async def report(
        self, door: str = "", demand: Demand | None = None, received: Mapping[str, int] | None = None
    ) -> Report:
        """Return how the replica is; `demand` is what waits at the front door that asks.

        `received`: how many calls of observers it has, by replica; None: it takes none.
        """
        if demand is not None:
            self._demands[door] = self._clock(), demand
        address = await self.listener.address()
        first, observed = 0, tuple[Observed, ...]()
        if received is not None:
            first, observed = self.notes.report(door, received.get(self.name, 0), self._clock())
        return Report(self.name, address, Status.of(self.client), observed, first, self.notes.num_lost)

    def load(self) -> dict[str, float]:
        """Return what decides on the number of replicas (`prolepsis.ray.autoscaling`)."""
        oldest, health = self._clock() - _GONE_S, self.client.health()
        self._demands = {door: told for door, told in self._demands.items() if told[0] >= oldest}
        demands = [demand for _, demand in self._demands.values()]
        return {
            IN_FLIGHT: health.num_running + health.num_waiting,
            WAITING: sum(demand.num_waiting for demand in demands),
            QUEUE_AGE_S: max((demand.queue_age_s for demand in demands), default=0.0),
        }

    async def leave(self) -> None:
        """Let the requests end that are there, and take no new ones."""
        await self.listener.drain()
        await self.listener.close()

    async def close(self) -> None:
        """End the engine; its requests end with `Aborted`."""
        await self.client.close()
        await self.listener.close()

    def check_health(self) -> None:
        """Raise if the engine cannot serve any more: the replica is then replaced."""
        health = self.client.health()
        if not health.alive:
            raise RuntimeError(health.detail)
