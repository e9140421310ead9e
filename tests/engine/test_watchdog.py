"""Whatever a proposer or a pass does to the engine's thread: every request continues, or gets its terminal event."""

import asyncio
import errno
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from torch import Tensor

from prolepsis.core.errors import DeadlineExceeded, EngineDead
from prolepsis.core.events import Event, Failed, Finished, Terminal
from prolepsis.core.figures import Figure, RequestDone
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import AppliedPlan, SpecPlan
from prolepsis.core.requests import GenerateRequest, SamplingParams, SpeculationChoice
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.drafting.acceptance import FIRST_JUDGED
from prolepsis.engine.drafting.call_watch import CallWatch, WatchedCall
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.models.protocol import Batch, KVCache
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.engine.watchdog import StepWatch, Watchdog, processor_clock
from tests.clock import Clock
from tests.fake_proposer import Scripted
from tests.fakes import EngineSetup, TableModel, build, draft_chain, outputs, request, run
from tests.virtual_time import virtual_time

PARAMS = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
OFF = SpeculationChoice("off")


class Blocked:
    """A place where a thread stays until it is let go; further threads pass."""

    def __init__(self) -> None:
        self.entered, self.free, self.left = threading.Event(), threading.Event(), threading.Event()

    def stay(self) -> None:
        if not self.entered.is_set():
            self.entered.set()
            assert self.free.wait(30)
            self.left.set()

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.entered.wait, 30)


class Blocking(Proposer):
    """Right chains, except for one call of one verb, after some, that does not return."""

    name = "scripted"
    free = True

    def __init__(self, verb: str, blocked: Blocked, after: int = 0) -> None:
        self._verb, self._blocked, self._left = verb, blocked, after

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        self._stay("propose")
        return [draft_chain(one, min(3, limit), wrong_from=99) for one, limit in zip(sequences, limits, strict=True)]

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        self._stay("commit")

    def forget(self, sequence: SequenceView) -> None:
        self._stay("forget")

    def _stay(self, verb: str) -> None:
        if verb == self._verb:
            self._left -= 1
            if self._left < 0:
                self._blocked.stay()


class BlockedModel(TableModel):
    def __init__(self, blocked: Blocked) -> None:
        super().__init__()
        self._blocked = blocked

    def forward(self, batch: Batch, cache: KVCache) -> Tensor:
        self._blocked.stay()
        return super().forward(batch, cache)


@pytest.fixture
def blocked() -> Blocked:
    return Blocked()


@pytest.fixture
def clock() -> Clock:
    return Clock(0.0)


Connect = Callable[[EngineSetup], ThreadEngineClient]


@pytest.fixture
async def connect(blocked: Blocked, clock: Clock) -> AsyncIterator[Connect]:
    clients: list[ThreadEngineClient] = []

    def connected(setup: EngineSetup) -> ThreadEngineClient:
        watch = CallWatch(0.15, clock)
        clients.append(ThreadEngineClient(build(replace(setup, watch=watch, stuck_after_s=60.0, clock=clock))))
        return clients[-1]

    yield connected
    blocked.free.set()
    for client in clients:
        await client.close()


def source(request_id: str, choice: SpeculationChoice | None = None) -> GenerateRequest:
    return replace(request(request_id, [1, 2], PARAMS), speculation=choice or SpeculationChoice())


async def collect(client: ThreadEngineClient, source: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(source)]


def ends(events: Sequence[Event]) -> list[Terminal]:
    return [event for event in events if isinstance(event, Terminal)]


@pytest.mark.parametrize("verb", ["propose", "commit", "forget"])
async def test_a_proposer_that_does_not_return_costs_drafts_and_nothing_else(
    connect: Connect, blocked: Blocked, clock: Clock, verb: str
) -> None:
    client = connect(EngineSetup(proposers=[Blocking(verb, blocked)]))
    sources = [source("own"), source("other", OFF)]
    running = [asyncio.create_task(collect(client, one)) for one in sources]
    await blocked.reached()
    clock.now += 0.2
    found = [event for events in await asyncio.gather(*running) for event in events]
    assert not blocked.left.is_set()
    assert outputs(found) == outputs(run(build(EngineSetup()), *sources))
    assert [type(end) for end in ends(found)] == [Finished, Finished]
    counts = {count.traffic_class: count.num_overdue for count in client.proposer_counts()}
    assert sum(counts.values()) == 1
    assert client.engine.speculation.proposers.failures == {"scripted": 1}
    later = await collect(client, source("later"))
    assert isinstance(later[-1], Finished)
    assert client.health().ready
    await client.close()
    assert not blocked.left.is_set(), "closing does not wait for it either"


@pytest.mark.parametrize(("verb", "after"), [("commit", 2), ("forget", 0)])
async def test_a_call_that_does_not_return_keeps_no_token_and_no_end_from_other_proposers(
    connect: Connect, blocked: Blocked, clock: Clock, verb: str, after: int
) -> None:
    other = Scripted(lambda one, limit: replace(draft_chain(one, 2, wrong_from=99), proposer="other"), "other")
    client = connect(EngineSetup(proposers=[Blocking(verb, blocked, after), other]))
    running = asyncio.create_task(collect(client, source("own")))
    await blocked.reached()
    clock.now += 0.2
    (end,) = ends(await running)
    assert sum(number for _, number in other.committed) == 2 + end.stats.num_output_tokens, "each token once"
    assert other.forgotten == ["own/0"]
    assert len(end.stats.judged["other"]) == FIRST_JUDGED, "nor is a draft that was judged lost"


async def test_the_thread_of_a_call_that_comes_back_ends(connect: Connect, blocked: Blocked, clock: Clock) -> None:
    client = connect(EngineSetup(proposers=[Blocking("propose", blocked)]))
    running = asyncio.create_task(collect(client, source("own")))
    await blocked.reached()
    (first,) = (thread for thread in threading.enumerate() if thread is client.thread)
    clock.now += 0.2
    plain = await running
    blocked.free.set()
    await asyncio.to_thread(first.join, 30)
    assert not first.is_alive()
    assert client.thread is not first
    client.engine.scheduler.check()
    again = await collect(client, source("own"))
    assert outputs(again) == outputs(plain)


async def test_a_stuck_pass_fails_readiness_then_every_request(
    connect: Connect, blocked: Blocked, clock: Clock
) -> None:
    client = connect(EngineSetup(model=BlockedModel(blocked)))
    running = [asyncio.create_task(collect(client, source(name))) for name in "abc"]
    await blocked.reached()
    clock.now += 19.0
    assert client.health().ready
    clock.now += 2.0
    health = client.health()
    assert (health.alive, health.ready, health.detail) == (True, False, "a step has been running for 21.0 s")
    clock.now += 40.0
    found = await asyncio.gather(*running)
    assert [type(event) for events in found for event in events] == [Failed] * 3
    assert all(isinstance(end, Failed) and isinstance(end.error, EngineDead) for events in found for end in events)
    assert not client.health().alive
    with pytest.raises(EngineDead, match="a step has not ended after 61"):
        await collect(client, source("late"))
    await client.close()


class BlockedObserver(Metrics):
    """Stays in the report of a request's end, after the step's last token."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__()
        self._blocked = blocked

    def observe(self, figure: Figure) -> None:
        if isinstance(figure, RequestDone):
            self._blocked.stay()


class BlockedPlan(AppliedPlan):
    """Stays in a change of the plan."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__()
        self._blocked = blocked

    def apply(self, plan: SpecPlan) -> None:
        self._blocked.stay()


async def test_a_step_that_is_stuck_after_its_pass_is_noticed(connect: Connect, blocked: Blocked, clock: Clock) -> None:
    client = connect(EngineSetup(observer=BlockedObserver(blocked)))
    running = asyncio.create_task(collect(client, source("a")))
    await blocked.reached()
    await _noticed(client, clock, running)


async def test_a_message_in_which_an_idle_engine_is_stuck_is_noticed(
    connect: Connect, blocked: Blocked, clock: Clock
) -> None:
    client = connect(EngineSetup())
    client.engine.plan = BlockedPlan(blocked)
    await collect(client, source("first"))
    client.send(ApplyPlan(SpecPlan()))
    await blocked.reached()
    await _noticed(client, clock, asyncio.create_task(collect(client, source("a"))))


async def _noticed(client: ThreadEngineClient, clock: Clock, running: asyncio.Task[list[Event]]) -> None:
    clock.now += 21.0
    assert client.health().detail == "a step has been running for 21.0 s"
    await asyncio.sleep(0)
    clock.now += 40.0
    (end,) = ends(await running)
    assert isinstance(end, Failed)
    assert isinstance(end.error, EngineDead)


class Suspended:
    """A process that stands still while its watchdog sleeps."""

    def __init__(self, clock: Clock, processor: Clock | None = None) -> None:
        watched = None if processor is None else lambda: processor
        self.calls, self.steps = CallWatch(0.15, clock), StepWatch(60.0, clock=clock, processor=watched)
        self.replaced: list[WatchedCall] = []
        self.given_up: list[EngineDead] = []
        self._clock = clock
        self._watchdog = Watchdog(
            self.calls, self.steps, replace=self.replaced.append, give_up=self.given_up.append, clock=clock
        )

    def stand_still(self, seconds: float) -> None:
        def wait(period_s: float) -> None:
            self._clock.now += seconds

        self._watchdog.sleep(wait)
        self._watchdog.check()


def test_a_step_is_not_stuck_for_the_time_in_which_the_process_stood_still(clock: Clock) -> None:
    process = Suspended(clock)
    process.steps.begin()
    for seconds in (150.0, 10.0):
        process.stand_still(seconds)
    assert process.given_up == []
    assert process.steps.age_s < 1.0
    assert process.steps.detail == ""
    clock.now += 61.0
    process.stand_still(0.02)
    assert len(process.given_up) == 1


def test_a_call_is_not_overdue_for_the_time_in_which_the_process_stood_still(clock: Clock) -> None:
    process = Suspended(clock)
    process.calls.enter(Blocking("propose", Blocked()), [])
    process.stand_still(150.0)
    assert process.replaced == []
    clock.now += 0.16
    process.stand_still(0.02)
    assert len(process.replaced) == 1


def test_a_later_step_has_nothing_of_an_earlier_suspension(clock: Clock) -> None:
    process = Suspended(clock)
    process.steps.begin()
    process.stand_still(150.0)
    process.steps.end()
    process.steps.begin()
    clock.now += 61.0
    process.stand_still(0.02)
    assert len(process.given_up) == 1


WORK: dict[str, tuple[Sequence[tuple[float, float]], float]] = {
    "hangs": ([(61.0, 0.0)], 61.0),
    "polls": ([(1.0, 0.0004)] * 61, 61.0),
    "works at the pace of a loaded machine": ([(10.0, 0.3)] * 100, 30.0),
    "is let run seldom": ([(50.0, 0.1)] * 20, 2.0),
    "hangs after work": ([(10.0, 1.0), (10.0, 1.0), (61.0, 0.0)], 61.0),
    "spins": ([(10.0, 10.0)] * 7, 70.0),
    "spins on a loaded machine": ([(10.0, 1.0)] * 61, 61.0),
}
"""What a step does: wall and processor seconds one after the other, and what counts of them in the end."""


@pytest.mark.parametrize("name", WORK)
def test_a_step_counts_by_its_work(clock: Clock, name: str) -> None:
    processor, given_up = Clock(), list[EngineDead]()
    steps = StepWatch(60.0, clock=clock, processor=lambda: processor)
    watchdog = Watchdog(CallWatch(None), steps, replace=lambda call: None, give_up=given_up.append, clock=clock)
    steps.begin()
    steps.end()
    processor.now += 1000.0  # of other steps
    steps.begin()
    times, counted = WORK[name]
    for seconds, worked in times:
        clock.now += seconds
        processor.now += worked
        watchdog.check()
    assert steps.age_s == pytest.approx(counted)
    assert bool(given_up) == (counted > 60.0)
    assert bool(steps.detail) == (counted > 20.0)
    steps.end()
    steps.begin()
    assert steps.age_s == 0.0


def test_a_suspended_process_is_not_at_rest_meanwhile(clock: Clock) -> None:
    process = Suspended(clock, Clock())
    process.steps.begin()
    clock.now += 50.0
    process.stand_still(150.0)
    assert process.given_up == []
    assert process.steps.age_s == pytest.approx(50.02)


def test_others_read_what_a_thread_has_computed() -> None:
    clock = processor_clock()
    begun = [clock(), time.thread_time()]
    while time.thread_time() < begun[1] + 0.005:
        pass
    with ThreadPoolExecutor(1) as other:
        assert other.submit(clock).result() >= begun[0] + 0.005


def test_of_a_thread_that_is_gone_only_time_counts(clock: Clock) -> None:
    times = iter([0.0])

    def gone() -> float:
        for one in times:
            return one
        raise OSError(errno.EINVAL, "no such thread")

    steps = StepWatch(60.0, clock=clock, processor=lambda: gone)
    steps.begin()
    clock.now += 61.0
    steps.note_progress()
    assert steps.age_s == 61.0


@virtual_time
async def test_a_deadline_ends_a_request_while_a_pass_runs() -> None:
    blocked = Blocked()
    client = ThreadEngineClient(build(EngineSetup(model=BlockedModel(blocked))))
    (end,) = await collect(client, replace(source("a"), deadline_s=2.0))
    assert isinstance(end, Failed)
    assert isinstance(end.error, DeadlineExceeded)
    assert (end.stats.num_prompt_tokens, end.stats.num_output_tokens) == (2, 0)
    assert 2.0 <= asyncio.get_running_loop().time() < 2.1
    blocked.free.set()
    assert isinstance((await collect(client, source("b")))[-1], Finished)
    assert isinstance((await collect(client, source("a")))[-1], Finished), "its name is free again"
    assert client.health().num_running == 0
    await client.close()
