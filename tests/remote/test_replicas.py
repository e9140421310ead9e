"""Several replicas seen as one engine."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from prolepsis.adapters.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.adapters.ray.hosts import RayHosts
from prolepsis.adapters.ray.replica import EngineReplica
from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import Demand, EngineClient, EngineHealth, HeadSwapped
from prolepsis.core.errors import (
    DeadlineExceeded,
    EngineDead,
    EngineError,
    InvalidParameter,
    NotContinued,
)
from prolepsis.core.events import Aborted, Event, Failed, Finished
from prolepsis.core.figures import FaultCount, StepDone
from prolepsis.core.messages import Abort, ApplyPlan, StopRun
from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.core.stats import RequestStats, TrafficClassCounts
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.host import MOST_FIGURES, KeptFigures
from prolepsis.remote.network import connect
from tests.fake_client import FakeEngineClient, answer
from tests.fakes import outputs, reference, request
from tests.remote.replicas import TurnsHandle, connected, front_end, replica, replica_of, until

ENDLESS = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


@pytest.fixture
async def handle() -> AsyncIterator[TurnsHandle]:
    handle = TurnsHandle([replica(), replica()])
    yield handle
    await handle.close()


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


async def test_a_request_goes_on_in_another_replica(handle: TurnsHandle) -> None:
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    async with front_end(handle) as client:
        stream = client.generate(source)
        events = [await anext(stream)]
        await handle.lose(0)
        events += [event async for event in stream]
        assert [one.loss for one in stats_of(events).continued] == ["engine_dead"]
        assert isinstance((await collect(client, "b"))[-1], Finished)
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))


async def test_an_engine_that_ends_loses_its_own_replica_only(handle: TurnsHandle) -> None:
    """The others go on with its requests, and it is asked for nothing more until Ray Serve replaces it."""
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    async with front_end(handle) as client:
        stream = client.generate(source)
        events = [await anext(stream)]
        ended = handle.replicas[0].host.client
        assert isinstance(ended, ThreadEngineClient)
        ended.engine.dead = EngineDead("the engine ended: out of memory")  # as a request sees it that comes now
        assert isinstance((await collect(client, "b"))[-1], Finished)
        assert isinstance((await collect(client, "c"))[-1], Finished)
        events += [event async for event in stream]
        await connected(client, 1)
        for name in "de":
            last = (await collect(client, name))[-1]
            assert isinstance(last, Finished)
            assert last.stats.continued == [], "a replica without an engine was asked"
    assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))


@pytest.mark.parametrize(("weights", "error"), [("table", None), ("other", "another exact group")])
async def test_a_stream_goes_on_in_a_replica_of_its_own_group_only(weights: str, error: str | None) -> None:
    handle = TurnsHandle([replica(), replica(weights=weights)], num_streams=1)
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    async with front_end(handle) as client:
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
    async with front_end(handle) as client:
        handle.replicas += [replica(weights="new"), replica(weights="new"), replica()]
        await handle.lose(0)
        await connected(client, 3)
        stream = client.generate(request("a", [1], ENDLESS))
        await anext(stream)
        handle.num_streams = 1
        await handle.lose(1)
        *_, last = [event async for event in stream]
        assert isinstance(last, Finished)
    await handle.close()


@pytest.mark.parametrize("gone", [False, True])
async def test_token_ids_of_another_tokenizer_are_refused(gone: bool) -> None:
    handle = TurnsHandle([replica(), replica(tokenizer="other")])
    async with front_end(handle) as client:
        if gone:
            await handle.lose(0)
            await connected(client, 1)
            with pytest.raises(EngineError, match="the engines have other"):
                await collect(client, "a")
        else:
            for i in range(2):
                assert isinstance((await collect(client, str(i)))[-1], Finished)
            assert isinstance(other := handle.replicas[1].host.client, ThreadEngineClient)
            assert other.engine.timings.num_steps == 0
    await handle.close()


async def test_controls_reach_replicas_that_start_later(handle: TurnsHandle) -> None:
    async with front_end(handle) as client:
        client.send(ApplyPlan(PANIC_PLAN))
        client.send(StopRun("run-1"))
        later = replica()
        handle.replicas.append(later)
        await connected(client, 3)
        choice = SpeculationChoice(mode="always", rollout_run="run-1")
        handle.num_streams = 2
        events = [event async for event in client.generate(replace(request("a", [1]), speculation=choice))]
        assert stats_of(events).mode.reason == "rolled_back"
        assert isinstance(later.host.client, ThreadEngineClient)
        assert later.host.client.engine.timings.num_steps > 0


async def test_a_plan_that_comes_while_a_head_is_swapped_holds() -> None:
    one = replica_of(engine := SlowSwaps())
    handle = TurnsHandle([one])
    async with front_end(handle) as client:
        swapping = asyncio.create_task(client.swap_head("new"))
        await engine.loading.wait()
        client.send(ApplyPlan(PANIC_PLAN))
        await until(lambda: engine.plans == [PANIC_PLAN])
        engine.loaded.set()
        await swapping
        client.send(StopRun("run-1"))
        await until(lambda: "run-1" in engine.stopped)
    assert engine.plans == [PANIC_PLAN]
    assert engine.swaps == ["new"]
    await handle.close()


async def test_a_replica_that_joins_while_a_head_is_swapped_gets_it() -> None:
    handle = TurnsHandle([replica_of(slow := SlowSwaps())])
    async with front_end(handle) as client:
        swapping = asyncio.create_task(client.swap_head("new"))
        await slow.loading.wait()
        handle.replicas.append(replica_of(late := FakeEngineClient(lambda source: [])))
        await until(lambda: len(client.health().members) == 2)
        slow.loaded.set()
        await swapping
        await connected(client, 2)
    assert late.swaps == ["new"]
    await handle.close()


async def test_no_front_end_undoes_what_another_one_stops() -> None:
    one = replica_of(engine := FakeEngineClient(lambda source: []))
    handle = TurnsHandle([one])
    stopped = SpecPlan(version=1, killed=frozenset({"tenant:bank"}))
    async with front_end(handle) as first:
        async with front_end(handle) as second:
            first.send(ApplyPlan(stopped))
            await until(lambda: engine.plans == [stopped])
            second.send(ApplyPlan(SpecPlan(version=5, num_speculative_tokens=4)))
            await until(lambda: len(engine.plans) == 2)
            assert (engine.plans[-1].killed, engine.plans[-1].num_speculative_tokens) == (stopped.killed, 4)
            first.send(ApplyPlan(SpecPlan(version=2)))
            await until(lambda: len(engine.plans) == 3)
            assert (engine.plans[-1].killed, engine.plans[-1].num_speculative_tokens) == (frozenset(), 4)
        await until(lambda: len(engine.plans) == 4)
        assert engine.plans[-1] == SpecPlan(version=2), "a front end that is gone stops nothing any more"
    await until(lambda: not one.host.num_front_ends)
    assert len(engine.plans) == 4, "without any front end the last plan stays"
    await handle.close()


async def test_a_front_end_that_connects_again_ends_its_connection_before() -> None:
    """Its host has not noticed that the way to it was lost."""
    one = replica_of(engine := FakeEngineClient(lambda source: []))
    handle = TurnsHandle([one])
    starts = [(await RayHosts(handle).engines())[one.name] for _ in range(2)]
    first, other = [await start() for start in starts]
    held = [asyncio.ensure_future(collect(client, "a")) for client in (first, other)]
    await until(lambda: len(engine.requests) == 2)
    first.send(ApplyPlan(PANIC_PLAN))
    await until(lambda: engine.plans == [PANIC_PLAN])
    again = await starts[0]()
    assert one.host.num_front_ends == 2
    assert one.host.num_requests == 1
    assert len(engine.aborted) == 1
    [lost] = await held[0]
    assert isinstance(lost, Failed)
    assert not first.health().alive
    continued = asyncio.ensure_future(collect(again, "a"))
    await until(lambda: one.host.num_requests == 2)
    for client in (other, again):
        client.send(Abort("a"))
    for events in await asyncio.gather(held[1], continued):
        assert [(type(event), event.request_id) for event in events] == [(Aborted, "a")]
    for client in (first, other, again):
        await client.close()
    await handle.close()


class Faulty(FakeEngineClient):
    """Its counts, or its health, cannot be read while they are `broken`."""

    def __init__(self) -> None:
        super().__init__(answer([[1]]))
        self.broken = ""

    def proposer_counts(self) -> Sequence[TrafficClassCounts]:
        if self.broken == "counts":
            raise RuntimeError("dictionary changed size during iteration")
        return self.counts

    def health(self) -> EngineHealth:
        if self.broken == "health":
            raise RuntimeError("no health")
        return self.reported


async def test_a_fault_while_reporting_costs_that_part_for_that_time() -> None:
    one = replica_of(engine := Faulty())
    link = await connect(await one.address())
    with capture_logs() as logs:
        engine.broken = "health"
        await until(lambda: any(entry["event"] == "fault_contained" for entry in logs))
    engine.broken = "counts"
    engine.reported = EngineHealth(alive=True, ready=True, detail="loaded")
    await until(lambda: link.health().detail == "loaded")
    assert isinstance((await collect(link, "a"))[-1], Finished)
    engine.broken = ""
    engine.counts = [TrafficClassCounts("suffix", "chat")]
    await until(lambda: bool(link.proposer_counts()))
    await link.close()
    await one.close()


async def test_a_front_end_that_gets_no_status_is_forgotten_when_it_leaves() -> None:
    one = replica_of(engine := Faulty())
    engine.broken = "health"
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await connect(await one.address())
    await until(lambda: not one.host.num_front_ends)
    await one.close()


async def test_a_figure_that_cannot_travel_costs_no_request_its_end() -> None:
    metrics, figures = Metrics(), KeptFigures()
    one = EngineReplica(FakeEngineClient(answer([[1]])), figures)
    link = await connect(await one.address(), metrics)
    for figure in (FaultCount("contained", "half a character: \ud800"), StepDone({}, 1)):
        figures.observe(figure)
    assert isinstance((await collect(link, "a"))[-1], Finished)
    assert "prolepsis_steps_total 1.0" in metrics.exposition().decode(), "the figures after it arrive"
    await link.close()
    await one.close()


async def test_figures_add_up_and_each_is_counted_once(handle: TurnsHandle) -> None:
    metrics = Metrics()
    async with front_end(handle, metrics) as client, front_end(handle, metrics) as other:
        found = [await collect(one, f"{name} {i}") for name, one in (("a", client), ("b", other)) for i in range(2)]
        total = sum(stats_of(events).num_output_tokens for events in found)
        await until(lambda: f"prolepsis_generation_tokens_total {total}.0" in metrics.exposition().decode())
        assert client.health().ready
        assert {member.name for member in client.health().members} == {one.name for one in handle.replicas}
        handle.replicas.append(replica())
        await connected(client, 3)
    assert not client.health().alive


async def test_figures_wait_for_a_front_end_within_bounds() -> None:
    kept, step = KeptFigures(), StepDone({}, 1)
    for _ in range(MOST_FIGURES + 3):
        kept.observe(step)
    with capture_logs() as logs:
        assert len(kept.take()) == MOST_FIGURES
    assert [(entry["event"], entry["number"]) for entry in logs] == [("figures_dropped", 3)]
    kept.observe(step)
    assert kept.take() == [step]


async def test_replicas_know_what_waits_at_the_front_ends_that_are_there() -> None:
    now = 0.0
    one = replica_of(FakeEngineClient(lambda source: []))
    one.host.clock = lambda: now
    handle = TurnsHandle([one])
    demands = [Demand(2.5, 7), Demand(0.5, 1)]
    async with front_end(handle, demand=lambda: demands[0]):
        async with front_end(handle, demand=lambda: demands[1]):
            await until(lambda: one.load() == {IN_FLIGHT: 3, WAITING: 8, QUEUE_AGE_S: 2.5})
        await until(lambda: one.load() == {IN_FLIGHT: 3, WAITING: 7, QUEUE_AGE_S: 2.5})
        now = 6.0
        assert one.load() == {IN_FLIGHT: 3, WAITING: 0, QUEUE_AGE_S: 0.0}, "it has gone silent"
    await handle.close()


async def test_places_are_those_of_all_replicas(handle: TurnsHandle) -> None:
    async with front_end(handle) as client:
        assert client.health().max_running == 16
        await handle.lose(0)
        await until(lambda: client.health().max_running == 8)


async def test_a_head_that_replicas_cannot_use_is_refused(handle: TurnsHandle) -> None:
    async with front_end(handle) as client:
        with pytest.raises(InvalidParameter, match="drafts nothing"):
            await client.swap_head("nonexistent")
        assert list(await client.heads()) == []


async def test_a_head_that_one_replica_cannot_use_is_taken_out_of_the_others() -> None:
    handle = TurnsHandle([replica_of(kind(lambda source: [])) for kind in (FakeEngineClient, NoSwaps)])
    async with front_end(handle) as client:
        with pytest.raises(InvalidParameter, match="no room for new"):
            await client.swap_head("new")
    assert isinstance(able := handle.replicas[0].host.client, FakeEngineClient)
    assert able.swaps == ["new", "none"]
    await handle.close()


async def test_a_replica_that_leaves_ends_what_it_has_and_gets_nothing_more(handle: TurnsHandle) -> None:
    metrics = Metrics()
    async with front_end(handle, metrics) as client:
        stream = client.generate(request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)))
        events = [await anext(stream)]
        left = handle.replicas.pop(0)
        leaving = asyncio.create_task(left.leave())
        others = [await collect(client, str(i)) for i in range(4)]
        events += [event async for event in stream]
        await leaving
        total = sum(stats_of(one).num_output_tokens for one in [events, *others])
        await until(lambda: f"prolepsis_generation_tokens_total {total}.0" in metrics.exposition().decode())
    await left.close()


async def test_a_replica_that_leaves_takes_no_connections() -> None:
    one = replica_of(FakeEngineClient(lambda source: []))
    link = await connect(address := await one.address())
    held = asyncio.create_task(collect(link, "a"))
    await until(lambda: one.host.num_requests == 1)
    leaving = asyncio.create_task(one.leave())
    await until(lambda: link.health().is_leaving)
    with pytest.raises(ConnectionRefusedError):
        await connect(address)
    link.send(Abort("a"))
    await held
    await leaving
    await link.close()
    await one.close()


async def test_requests_wait_while_no_replica_is_there(handle: TurnsHandle) -> None:
    async with front_end(handle) as client:
        for number in range(2):
            await handle.lose(number)
        await until(lambda: not client.health().members)
        waiting = asyncio.create_task(collect(client, "waits"))
        aborted = asyncio.create_task(collect(client, "aborted"))
        with pytest.raises(DeadlineExceeded):
            [event async for event in client.generate(replace(request("late", [1]), deadline_s=0.01))]
        client.send(Abort("aborted"))
        [event] = await aborted
        assert isinstance(event, Aborted)
        handle.replicas.append(replica())
        assert isinstance((await waiting)[-1], Finished)


async def test_a_replica_that_cannot_be_reached_is_shown_as_not_ready(handle: TurnsHandle) -> None:
    async with front_end(handle) as client:
        alone = replica()
        await alone.address()
        await alone.end_connections()
        handle.replicas.append(alone)
        await until(lambda: any("cannot be reached" in member.detail for member in client.health().members))
        health = client.health()
        assert health.ready
        assert health.max_running == 16
        [shown] = [member for member in health.members if member.name == alone.name]
        assert not shown.ready
