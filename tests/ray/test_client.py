"""Several replicas seen as one engine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from structlog.testing import capture_logs

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.errors import (
    ContextTooLong,
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidParameter,
    NotContinued,
    ReplicaLost,
)
from prolepsis.core.events import Aborted, Event, Failed, Finished
from prolepsis.core.figures import StepDone
from prolepsis.core.messages import Abort, ApplyPlan, StopRun
from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats
from prolepsis.engine.client import Demand, EngineClient, HeadSwapped
from prolepsis.engine.process.messages import Observed
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.failover.client import FailoverClient
from prolepsis.failover.members import Member
from prolepsis.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.ray.messages import ControlState
from prolepsis.ray.replica import MOST_OBSERVED, Notes
from prolepsis.sampling.noise import noise_key
from prolepsis.telemetry.metrics import Metrics
from tests.fake_client import FakeEngineClient
from tests.fakes import outputs, reference, request
from tests.ray.replicas import TurnsHandle, front_door, replica

ENDLESS = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


@pytest.fixture
async def handle() -> AsyncIterator[TurnsHandle]:
    handle = TurnsHandle([replica(), replica()])
    yield handle
    await handle.close()


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another task does."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)


class NoSwaps(FakeEngineClient):
    """Cannot load any head."""

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        raise InvalidParameter(f"no room for {name}", param="head")


class SlowSwaps(FakeEngineClient):
    """Loads heads until `loaded`."""

    def __init__(self) -> None:
        super().__init__(lambda source: [])
        self.loading, self.loaded = asyncio.Event(), asyncio.Event()

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        self.loading.set()
        await self.loaded.wait()
        return await super().swap_head(name, proposer)


async def collect(client: EngineClient, name: str, params: SamplingParams | None = None) -> list[Event]:
    return [event async for event in client.generate(request(name, [1, 2], params))]


def stats_of(events: Sequence[Event]) -> RequestStats:
    assert isinstance(events[-1], Finished)
    return events[-1].stats


async def test_each_replica_gives_the_same_answer(handle: TurnsHandle) -> None:
    sampled = SamplingParams(temperature=0.8, max_tokens=20, seed=3)
    async with front_door(handle) as client:
        found = await asyncio.gather(*(collect(client, str(i), sampled) for i in range(4)))
    for i, events in enumerate(found):
        assert isinstance(events[-1], Finished)
        assert outputs(events)[str(i), 0] == reference(request(str(i), [1, 2], sampled), noise_key(3, 0))


async def test_a_refusal_is_raised_before_the_first_event(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        with pytest.raises(ContextTooLong, match="1024"):
            [event async for event in client.generate(request("a", [1] * 2000))]
    with pytest.raises(EngineDead, match="closed"):
        await collect(client, "b")


async def test_a_lost_replica_fails_its_request_and_the_next_finds_another(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        stream = client.generate(request("a", [1], ENDLESS))
        await anext(stream)
        await handle.lose(0)
        *_, last = [event async for event in stream]
        assert isinstance(last, Failed)
        assert isinstance(last.error, ReplicaLost)
        assert last.stats.num_output_tokens > 0
        assert isinstance((await collect(client, "b"))[-1], Finished)


async def test_an_engine_that_ends_loses_its_own_replica_only(handle: TurnsHandle) -> None:
    """The others go on with its requests, and it is asked for nothing more until Ray Serve replaces it."""
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    async with front_door(handle) as inner:
        client = FailoverClient([Member(inner)])
        stream = client.generate(source)
        events = [await anext(stream)]
        ended = handle.replicas[0].client
        assert isinstance(ended, ThreadEngineClient)
        ended.engine.dead = EngineDead("the engine ended: out of memory")  # what a request is told that comes now
        assert isinstance((await collect(client, "b"))[-1], Finished)
        assert isinstance((await collect(client, "c"))[-1], Finished)
        events += [event async for event in stream]
        await inner.refresh()
        await inner.connected()
        for name in "de":
            last = (await collect(client, name))[-1]
            assert isinstance(last, Finished)
            assert last.stats.continued == [], "a replica without an engine was asked"
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))


@pytest.mark.parametrize(("weights", "error"), [("table", None), ("other", "another exact group")])
async def test_a_stream_goes_on_in_a_replica_of_its_own_group_only(weights: str, error: str | None) -> None:
    """Also where what all replicas say of themselves is not what served the stream: while others take their place."""
    handle = TurnsHandle([replica(), replica(weights=weights)], num_streams=1)
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    async with front_door(handle) as inner:
        client = FailoverClient([Member(inner)])
        stream = client.generate(source)
        events = [await anext(stream)]
        await handle.lose(1)
        events += [event async for event in stream]
    if error is None:
        assert isinstance(events[-1], Finished)
        assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
    else:
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, NotContinued)
        assert error in str(events[-1].error)
    await handle.close()


async def test_engines_of_other_weights_take_the_place_of_the_first() -> None:
    """A stream that began under the new weights goes on under them, whichever replica is next in turn."""
    handle = TurnsHandle([replica()])
    async with front_door(handle) as inner:
        client = FailoverClient([Member(inner)])
        handle.replicas += [replica(weights="new"), replica(weights="new"), replica()]
        await handle.lose(0)
        await inner.refresh()
        await inner.connected()
        stream = client.generate(request("a", [1], ENDLESS))
        await anext(stream)
        handle.num_streams = 1
        await handle.lose(1)
        *_, last = [event async for event in stream]
        assert isinstance(last, Finished)
    await handle.close()


@pytest.mark.parametrize("gone", [(), (0,)])
async def test_token_ids_of_another_tokenizer_are_refused(gone: Sequence[int]) -> None:
    handle = TurnsHandle([replica(), replica(tokenizer="other")])
    async with front_door(handle, gone=gone) as client:
        await client.refresh()
        if gone:
            with pytest.raises(EngineError, match="the replicas have other"):
                await collect(client, "a")
        else:
            for i in range(2):
                assert isinstance((await collect(client, str(i)))[-1], Finished)
            assert isinstance(other := handle.replicas[1].client, ThreadEngineClient)
            assert other.engine.timings.num_steps == 0
    await handle.close()


async def test_what_was_told_reaches_replicas_that_start_later(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        client.send(ApplyPlan(PANIC_PLAN))
        client.send(StopRun("run-1"))
        later = replica()
        handle.replicas.append(later)
        handle.num_streams = 2
        await client.refresh()
        await client.connected()
        choice = SpeculationChoice(mode="on", rollout_run="run-1")
        events = [event async for event in client.generate(replace(request("a", [1]), speculation=choice))]
        assert isinstance(events[-1], Finished)
        [told] = later.obeyed.values()
        assert (told.plan, told.stopped_runs) == (PANIC_PLAN, ("run-1",))
        assert events[-1].stats.mode.reason == "rolled_back"


async def test_a_plan_that_is_told_while_a_head_is_swapped_holds() -> None:
    one = replica()
    await one.client.close()
    one.client = engine = SlowSwaps()
    handle = TurnsHandle([one])
    async with front_door(handle) as client:
        swapping = asyncio.create_task(client.swap_head("new"))
        await engine.loading.wait()
        client.send(ApplyPlan(PANIC_PLAN))
        engine.loaded.set()  # so the replica learns of the plan only after the swap
        await swapping
        client.send(StopRun("run-1"))
        await until(lambda: "run-1" in engine.stopped)
    assert engine.plans == [PANIC_PLAN]
    assert engine.swaps == ["new"], "what a front door tells after a swap does not repeat it"
    [told] = one.obeyed.values()
    assert (told.plan, told.heads) == (PANIC_PLAN, ((DRAFT_HEAD, "new"),))
    await handle.close()


async def test_an_older_word_of_the_same_door_changes_nothing() -> None:
    one = replica()
    door = ControlState(door="d", version=2, stopped_runs=("run-1", "run-2"))
    other = ControlState(door="e", version=1, stopped_runs=("run-3",))
    await one.obey(door)
    await one.obey(ControlState(door="d", version=1, plan=PANIC_PLAN))
    await one.obey(other)
    assert one.obeyed == {"d": door, "e": other}
    await one.close()


async def test_no_door_undoes_what_another_one_stops() -> None:
    one = replica()
    await one.client.close()
    one.client = engine = FakeEngineClient(lambda source: [])
    handle = TurnsHandle([one])
    stopped = SpecPlan(version=1, killed=frozenset({"tenant:bank"}))
    async with front_door(handle) as first:
        async with front_door(handle) as second:
            first.send(ApplyPlan(stopped))
            await until(lambda: engine.plans == [stopped])
            second.send(ApplyPlan(SpecPlan(version=5, num_speculative_tokens=4)))
            await until(lambda: len(engine.plans) == 2)
            assert (engine.plans[-1].killed, engine.plans[-1].num_speculative_tokens) == (stopped.killed, 4)
            first.send(ApplyPlan(SpecPlan(version=2)))
            await until(lambda: len(engine.plans) == 3)
            assert (engine.plans[-1].killed, engine.plans[-1].num_speculative_tokens) == (frozenset(), 4)
        await until(lambda: len(engine.plans) == 4)
        assert engine.plans[-1] == SpecPlan(version=2), "a door that is gone stops nothing any more"
    await until(lambda: not one.listener.num_doors)
    assert len(engine.plans) == 4, "without any door the last plan stays"
    await handle.close()


async def test_figures_add_up_and_the_observer_learns_of_all(handle: TurnsHandle) -> None:
    metrics = Metrics()
    async with front_door(handle, metrics) as client:
        found = [await collect(client, str(i)) for i in range(4)]
        await client.refresh()
        total = sum(stats_of(events).num_output_tokens for events in found)
        assert f"prolepsis_generation_tokens_total {total}.0" in metrics.exposition().decode()
        assert client.health().ready
        assert {report.replica for report in client.replicas} == {one.name for one in handle.replicas}
        handle.replicas.append(replica())
        await client.refresh()
        assert len(client.replicas) == 3
    assert not client.health().alive


@dataclass(slots=True)
class LosesReplies(TurnsHandle):
    """Replies do not arrive, or arrive in place of the next ones."""

    loses: bool = False
    late: list[Sequence[object]] = field(default_factory=list)

    async def broadcast(self, method: str, *arguments: object, timeout_s: float = 60.0) -> Sequence[object]:
        replies = await TurnsHandle.broadcast(self, method, *arguments, timeout_s=timeout_s)
        if self.loses:
            self.late.append(replies)
            return [TimeoutError() for _ in replies]
        return self.late.pop() if self.late else replies


async def test_figures_of_replies_that_are_lost_or_late_count_once() -> None:
    metrics, handle = Metrics(), LosesReplies([replica()])
    async with front_door(handle, metrics) as client:
        total = stats_of(await collect(client, "a")).num_output_tokens
        handle.loses = True
        await client.refresh()
        handle.loses = False
        total += stats_of(await collect(client, "b")).num_output_tokens
        await handle.replicas[0].report()  # for another front door that starts
        for _ in range(3):
            await client.refresh()
        assert f"prolepsis_generation_tokens_total {total}.0" in metrics.exposition().decode()
        assert handle.replicas[0].notes.num_lost == 0
    await handle.close()


async def test_figures_that_a_replica_dropped_are_in_the_log() -> None:
    handle = TurnsHandle([one := replica()])
    async with front_door(handle) as client:
        with capture_logs() as logs:
            for num_lost in (3, 3, 5):
                one.notes.num_lost = num_lost
                await client.refresh()
    lost = [(entry["replica"], entry["num_calls"]) for entry in logs if entry["event"] == "replica_dropped_figures"]
    assert lost == [(one.name, 3), (one.name, 2)]
    await handle.close()


def test_a_replica_keeps_what_is_not_confirmed_within_bounds() -> None:
    notes, note = Notes(), Observed(StepDone({}, 1))
    for _ in range(MOST_OBSERVED):
        notes._keep(note)
    assert notes.report("door", 0, 0.0)[0] == 0
    for _ in range(10):
        notes._keep(note)
    first, told = notes.report("door", 4, 1.0)
    assert (first, len(told), notes.num_lost) == (10, MOST_OBSERVED, 6)
    assert notes.report("door", 10 + MOST_OBSERVED, 2.0) == (10 + MOST_OBSERVED, ())
    notes._keep(note)
    assert notes.report("door", 10 + MOST_OBSERVED, 3.0) == (10 + MOST_OBSERVED, (note,))
    assert notes.report("other", 0, 20.0) == (0, ())
    assert notes.num_lost == 7, "that door is gone"


async def test_replicas_know_what_waits_at_the_doors_that_are_there() -> None:
    now = 0.0
    one = replica(lambda: now)
    handle = TurnsHandle([one])
    async with front_door(handle) as first, front_door(handle) as second:
        first.follow(lambda: Demand(2.5, 7))
        second.follow(lambda: Demand(0.5, 1))
        await first.refresh()
        await second.refresh()
        assert one.load() == {IN_FLIGHT: 0, WAITING: 8, QUEUE_AGE_S: 2.5}
        now = 4.0
        await second.refresh()
        now = 6.0
        stream = second.generate(request("a", [1], ENDLESS))
        await anext(stream)
        assert one.load() == {IN_FLIGHT: 1, WAITING: 1, QUEUE_AGE_S: 0.5}, "the first door has gone silent"
        await stream.aclose()
    await one.close()


async def test_places_are_those_of_all_replicas(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        assert client.health().max_running == 16
        await handle.lose(0)
        await client.refresh()
        assert client.health().max_running == 8


async def test_a_head_that_replicas_cannot_use_is_refused(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        with pytest.raises(InvalidParameter, match="drafts nothing"):
            await client.swap_head("nonexistent")
        assert await client.heads() == []


async def test_a_head_that_one_replica_cannot_use_is_taken_out_of_the_others() -> None:
    handle = TurnsHandle([replica(), replica()])
    for one, kind in zip(handle.replicas, (FakeEngineClient, NoSwaps), strict=True):
        await one.client.close()
        one.client = kind(lambda source: [])
    async with front_door(handle) as client:
        with pytest.raises(InvalidParameter, match="no room for new"):
            await client.swap_head("new")
    assert isinstance(able := handle.replicas[0].client, FakeEngineClient)
    assert able.swaps == ["new", "none"]
    await handle.close()


async def test_a_replica_that_leaves_ends_what_it_has_and_gets_nothing_more(handle: TurnsHandle) -> None:
    metrics = Metrics()
    async with front_door(handle, metrics) as client:
        stream = client.generate(request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)))
        events = [await anext(stream)]
        left = handle.replicas.pop(0)
        leaving = asyncio.create_task(left.leave())
        others = [await collect(client, str(i)) for i in range(4)]
        events += [event async for event in stream]
        await leaving
        assert handle.replicas[0].listener.num_streams == 0
        total = sum(stats_of(one).num_output_tokens for one in [events, *others])
        async with asyncio.timeout(5):
            while f"prolepsis_generation_tokens_total {total}.0" not in metrics.exposition().decode():
                await asyncio.sleep(0.001)
                await client.refresh()
    await left.close()


async def test_requests_wait_while_no_replica_is_there(handle: TurnsHandle) -> None:
    async with front_door(handle, gone=(0, 1)) as client:
        waiting = asyncio.create_task(collect(client, "waits"))
        aborted = asyncio.create_task(collect(client, "aborted"))
        soon = replace(request("late", [1]), deadline_s=0.001)
        [late] = [event async for event in client.generate(soon)]
        assert isinstance(late, Failed)
        assert isinstance(late.error, DeadlineExceeded)
        client.send(Abort("aborted"))
        [event] = await aborted
        assert isinstance(event, Aborted)
        handle.replicas.append(replica())
        await client.refresh()
        assert isinstance((await waiting)[-1], Finished)


async def test_closing_ends_requests(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        stream = client.generate(request("a", [1], ENDLESS))
        await anext(stream)
        await client.close()
        *_, last = [event async for event in stream]
    assert isinstance(last, Aborted)
    assert last.reason == "shutdown"


async def test_a_replica_that_cannot_be_reached_is_shown_as_not_ready(handle: TurnsHandle) -> None:
    async with front_door(handle) as client:
        alone = replica()
        handle.replicas.append(alone)
        await alone.report()
        assert alone.listener is not None
        await alone.listener.close()
        await client.refresh()
        await client.connected()
        health = client.health()
        assert health.ready
        assert health.max_running == 16
        [shown] = [member for member in health.members if member.name == alone.name]
        assert not shown.ready
        assert "cannot be reached" in shown.detail
