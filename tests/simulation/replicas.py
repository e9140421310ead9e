"""Replicas in numbers: steps that take measured times, the real accounting of pages, the real choice of a replica.

A replica computes prompts in chunks beside the sequences that decode, as the scheduler does, and admits a request once
its pages are there; nothing is preempted and nothing is drafted. A front door is a queue: it takes a time for each
request and for each chunk that it passes on.
"""

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

from prolepsis.core.page_size import PAGE_SIZE
from prolepsis.core.requests import GenerateRequest
from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.kv.pages import PagePool
from prolepsis.remote.prefixes import ReplicaRouter, page_hashes


class RoundRobin:
    """One replica after the other."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def ranked(self, request: GenerateRequest, loads: Mapping[str, int]) -> Sequence[str]:
        names = list(loads)
        first = next(self._turns) % len(names)
        return names[first:] + names[:first]

    def sent(self, request: GenerateRequest, replica: str) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Machine:
    """What one replica has and takes."""

    curve: CostCurve
    """Of a pass."""
    num_pages: int
    outside_ms: float = 0.0
    """Of a step, beside its pass."""
    max_sequences: int = 64
    max_step_tokens: int = 256

    def step_s(self, num_tokens: int, num_context: int) -> float:
        """Return the seconds of a step, at a context that is known to a hundred tokens."""
        return (_pass_ms(self.curve, num_tokens, num_context // 100) + self.outside_ms) / 1000


@lru_cache(maxsize=100_000)
def _pass_ms(curve: CostCurve, num_tokens: int, hundreds: int) -> float:
    return curve.ms(num_tokens, 100 * hundreds)


@dataclass(frozen=True, slots=True)
class Door:
    """What a front door takes, in milliseconds of its one event loop."""

    request_ms: float = 0.0
    chunk_ms: float = 0.0
    report_ms: float = 0.0
    """Of one replica's report."""
    reports_per_s: float = 2.0


@dataclass(frozen=True, slots=True)
class Call:
    """A request, when it arrives, and how many tokens it is answered with."""

    arrival_s: float
    request: GenerateRequest
    num_output: int


@dataclass(slots=True)
class Job:
    """A call in a replica."""

    call: Call
    hashes: Sequence[bytes]
    door: "_FrontDoor"
    num_computed: int = 0
    num_cached: int = 0
    num_emitted: int = 0
    pages: list[int] = field(default_factory=list)
    first_token_s: float = 0.0
    end_s: float = 0.0

    @property
    def num_prompt(self) -> int:
        return len(self.call.request.prompt_token_ids)


class Replica:
    """Steps over its jobs."""

    def __init__(self, machine: Machine) -> None:
        self.pool = PagePool(machine.num_pages, PAGE_SIZE)
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.is_stepping = False
        self.busy_s = 0.0
        self._machine = machine
        self._rows: list[tuple[Job, int]] = []
        """Jobs of the step, and how many tokens of each it computes."""

    @property
    def load(self) -> int:
        return len(self.waiting) + len(self.running)

    def add(self, job: Job) -> None:
        self.waiting.append(job)

    def begin_step(self) -> float | None:
        """Plan a step and return the seconds that it takes; None: there is nothing to do."""
        self._admit()
        self._rows = [(job, 1) for job in self.running if job.num_emitted]
        budget = self._machine.max_step_tokens - len(self._rows)
        for job in self.running:
            count = min(budget, job.num_prompt - job.num_computed) if not job.num_emitted else 0
            if count > 0:
                self._rows.append((job, count))
                budget -= count
        if not self._rows:
            return None
        num_tokens, num_context = sum(count for _, count in self._rows), sum(job.num_computed for job, _ in self._rows)
        seconds = self._machine.step_s(num_tokens, num_context)
        self.busy_s += seconds
        return seconds

    def end_step(self) -> list[Job]:
        """Return the jobs that got a token."""
        emitted = []
        for job, count in self._rows:
            before, job.num_computed = job.num_computed // PAGE_SIZE, job.num_computed + count
            for i in range(before, min(job.num_computed // PAGE_SIZE, len(job.hashes))):
                self.pool.publish(job.pages[i], job.hashes[i])
            if job.num_computed >= job.num_prompt:
                job.num_emitted += 1
                emitted.append(job)
            if job.num_emitted == job.call.num_output:
                self.running.remove(job)
                self.pool.release(reversed(job.pages))
        return emitted

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self._machine.max_sequences:
            job = self.waiting[0]
            pages = self.pool.match(job.hashes)
            missing = self.pool.pages_for(job.num_prompt + job.call.num_output) - len(pages)
            if missing > self.pool.num_available:
                self.pool.release(reversed(pages))
                return
            job.num_cached = job.num_computed = len(pages) * PAGE_SIZE
            job.pages = pages + self.pool.allocate(missing)
            self.running.append(self.waiting.popleft())


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of all calls."""

    jobs: Sequence[Job]
    seconds: float
    replicas: Sequence[Replica]
    door_busy: float
    """Of the front doors' time, in [0, 1]."""

    @property
    def hit_rate(self) -> float:
        """Prompt tokens from the prefix cache, of all prompt tokens."""
        return sum(job.num_cached for job in self.jobs) / sum(job.num_prompt for job in self.jobs)

    @property
    def tokens_per_s(self) -> float:
        return sum(job.num_emitted for job in self.jobs) / self.seconds

    @property
    def imbalance(self) -> float:
        """The busiest replica's time in steps over the mean."""
        busy = [replica.busy_s for replica in self.replicas]
        return max(busy) * len(busy) / sum(busy)

    @property
    def ttft_s(self) -> list[float]:
        """Seconds from arrival to the first token at the client, ascending."""
        return sorted(job.first_token_s - job.call.arrival_s for job in self.jobs)


class _Simulation:
    """Replicas behind front doors, on a clock that jumps from event to event."""

    def __init__(self, machine: Machine, num_replicas: int, routers: Sequence[ReplicaRouter], times: Door) -> None:
        self.replicas = {f"replica-{i}": Replica(machine) for i in range(num_replicas)}
        self.jobs: list[Job] = []
        self.now = 0.0
        self._doors = [_FrontDoor(router, times, num_replicas) for router in routers]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serial = itertools.count()

    def run(self, calls: Sequence[Call]) -> Outcome:
        for call, door in zip(calls, itertools.cycle(self._doors), strict=False):
            self._at(call.arrival_s, partial(self._arrive, call, door))
        while self._events:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        busy = sum(door.busy_s for door in self._doors) / (self.now * len(self._doors))
        return Outcome(self.jobs, self.now, list(self.replicas.values()), busy)

    def _at(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (seconds, next(self._serial), happen))

    def _arrive(self, call: Call, door: "_FrontDoor") -> None:
        self._at(door.work(self.now, door.times.request_ms), partial(self._send, call, door))

    def _send(self, call: Call, door: "_FrontDoor") -> None:
        loads = {name: replica.load for name, replica in self.replicas.items()}
        name = door.router.ranked(call.request, loads)[0]
        door.router.sent(call.request, name)
        job = Job(call, page_hashes(call.request), door)
        self.jobs.append(job)
        replica = self.replicas[name]
        replica.add(job)
        if not replica.is_stepping:
            self._step(replica)

    def _step(self, replica: Replica) -> None:
        seconds = replica.begin_step()
        replica.is_stepping = seconds is not None
        if seconds is not None:
            self._at(self.now + seconds, partial(self._stepped, replica))

    def _stepped(self, replica: Replica) -> None:
        for job in replica.end_step():
            job.end_s = job.door.work(self.now, job.door.times.chunk_ms)
            job.first_token_s = job.first_token_s or job.end_s
        self._step(replica)


class _FrontDoor:
    """One event loop, which does what comes in its order; reports of replicas take their share of it."""

    def __init__(self, router: ReplicaRouter, times: Door, num_replicas: int) -> None:
        self.router = router
        self.times = times
        self.busy_s = 0.0
        self._free_s = 0.0
        self._left = 1.0 - times.report_ms * times.reports_per_s * num_replicas / 1000
        assert self._left > 0, "reports alone take more than the door has"

    def work(self, now: float, milliseconds: float) -> float:
        """Return when work that comes now is done."""
        seconds = milliseconds / 1000 / self._left
        self.busy_s += seconds
        self._free_s = max(now, self._free_s) + seconds
        return self._free_s


def simulate(
    calls: Sequence[Call],
    machine: Machine,
    num_replicas: int,
    routers: Sequence[ReplicaRouter],
    times: Door | None = None,
) -> Outcome:
    """Answer `calls` by so many replicas behind one front door for each of `routers`."""
    return _Simulation(machine, num_replicas, routers, times or Door()).run(calls)
