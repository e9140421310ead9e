"""Chooses the next request: virtual time over token cost between flows, then priority, then arrival.

Start-time fair queueing (Goyal, Vin, Cheng 1996, section 2) with one flow for each tenant and tier: a flow's virtual
time advances by cost / weight with each request it starts, the flow that is furthest behind goes next, and a flow that
was idle begins at the present instead of claiming the past.
"""

from bisect import insort
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from operator import attrgetter

from prolepsis.server.admission.load_shedding import TIERS

_by_turn = attrgetter("turn")


@dataclass(slots=True, eq=False)
class Waiting:
    """A request in the queue."""

    tenant: str
    tier: str
    priority: int  # lower goes first, within its flow only
    cost: float  # tokens it may take: prompt and longest answer, and its own processing as tokens
    size: int
    since: float
    serial: int = 0
    places: int = 0  # places in the engine that it holds since it started
    is_first: bool = False  # when it started, its tenant had nothing in the engine

    @property
    def flow(self) -> tuple[str, str]:
        return self.tenant, self.tier

    @property
    def turn(self) -> tuple[int, int]:
        return self.priority, self.serial


def _none(_tenant: str, _tier: str) -> bool:
    return False


@dataclass(slots=True)
class _Flow:
    virtual_time: float
    waiting: list[Waiting] = field(default_factory=list)


class FairQueue:
    """The caller bounds its size, and may hold flows back."""

    def __init__(self) -> None:
        self._flows: dict[tuple[str, str], _Flow] = {}
        self._now = 0.0
        """Virtual time of the last request started."""
        self._serial = 0
        self._num_waiting: Counter[str] = Counter()
        """By tier."""

    def __len__(self) -> int:
        return self._num_waiting.total()

    def num_of_tenant(self, tenant: str, tiers: Collection[str] = TIERS.keys()) -> int:
        return sum(len(self._flows[tenant, tier].waiting) for tier in tiers if (tenant, tier) in self._flows)

    def num_of_tier(self, tier: str) -> int:
        return self._num_waiting[tier]

    def push(self, request: Waiting) -> None:
        self._serial += 1
        request.serial = self._serial
        flow = self._flows.setdefault(request.flow, _Flow(self._now))
        if not flow.waiting:
            flow.virtual_time = max(flow.virtual_time, self._now)
        insort(flow.waiting, request, key=_by_turn)
        self._num_waiting[request.tier] += 1

    def peek(self, holds: Callable[[str, str], bool] = _none) -> Waiting | None:
        """Return the next request; it stays in the queue. As `next_of_each`."""
        return next(iter(self.next_of_each(holds)), None)

    def next_of_each(self, holds: Callable[[str, str], bool] = _none) -> list[Waiting]:
        """Return the next request of each of the flows that are furthest behind, by arrival; they stay in the queue.

        Flows that are held, by tenant and tier, are left out and claim nothing later.
        """
        flows: list[_Flow] = []
        for (tenant, tier), flow in self._flows.items():
            if holds(tenant, tier):
                flow.virtual_time = max(flow.virtual_time, self._now)
            elif flow.waiting:
                flows.append(flow)
        first = min((flow.virtual_time for flow in flows), default=0.0)
        found = (flow.waiting[0] for flow in flows if flow.virtual_time == first)
        return sorted(found, key=attrgetter("serial"))

    def start(self, request: Waiting) -> None:
        """Take out a request that goes to the engine."""
        flow = self._flows[request.flow]
        self._now = max(self._now, flow.virtual_time)
        flow.virtual_time += request.cost / TIERS[request.tier].weight
        self.drop(request)

    def drop(self, request: Waiting) -> None:
        """Take out a request that will not run."""
        self._flows[request.flow].waiting.remove(request)
        self._num_waiting[request.tier] -= 1
        # a flow that is not ahead of the present is what a new one would be
        idle = [name for name, flow in self._flows.items() if not flow.waiting and flow.virtual_time <= self._now]
        for name in idle:
            del self._flows[name]

    def correct(self, request: Waiting, unused: float) -> None:
        """Let its flow have the share back that a started request did not use (negative: used beyond its cost)."""
        flow = self._flows.get(request.flow)
        if flow is not None:
            back = unused / TIERS[request.tier].weight
            flow.virtual_time = max(flow.virtual_time - back, min(flow.virtual_time, self._now))

    def oldest(self, without: Collection[str] = ()) -> float | None:
        """Return since when the longest-waiting request waits, without some tiers."""
        return min(self.oldest_of_tenants(without).values(), default=None)

    def oldest_of_tenants(self, without: Collection[str] = ()) -> dict[str, float]:
        oldest: dict[str, float] = {}
        for (tenant, tier), flow in self._flows.items():
            if tier not in without and flow.waiting:
                since = min(waiting.since for waiting in flow.waiting)
                oldest[tenant] = min(since, oldest.get(tenant, since))
        return oldest

    def tenants(self) -> set[str]:
        return {tenant for (tenant, _), flow in self._flows.items() if flow.waiting}
