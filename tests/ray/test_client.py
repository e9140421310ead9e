"""Several replicas seen as one engine."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from prolepsis.core.errors import (
    ContextTooLong,
    EngineDead,
    EngineError,
    InvalidParameter,
    NotContinued,
    ReplicaLost,
)
from prolepsis.core.events import Event, Failed, Finished
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import SamplingParams, SpeculationChoice
from prolepsis.engine.client import Demand, EngineClient
from prolepsis.failover.client import FailoverClient
from prolepsis.failover.members import Member
from prolepsis.ray.autoscaling import IN_FLIGHT, QUEUE_AGE_S, WAITING
from prolepsis.ray.client import ReplicasClient
from prolepsis.ray.messages import ControlState, Report
from prolepsis.sampling.noise import noise_key
from prolepsis.telemetry.metrics import Metrics
from tests.fakes import outputs, reference, request
from tests.ray.replicas import TurnsHandle, replica

ENDLESS = SamplingParams(temperature=0.0, max_tokens=900, ignore_eos=True)


@pytest.fixture
async def handle() -> AsyncIterator[TurnsHandle]:
    handle = TurnsHandle([replica(), replica()])
    yield handle
    await handle.close()


async def client_of(handle: TurnsHandle, metrics: Metrics | None = None) -> ReplicasClient:
    reports = [reply for reply in await handle.broadcast("report") if isinstance(reply, Report)]
    return ReplicasClient(handle, reports, metrics)


async def collect(client: EngineClient, name: str, params: SamplingParams | None = None) -> list[Event]:
    return [event async for event in client.generate(request(name, [1, 2], params))]


async def test_each_replica_gives_the_same_answer(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    sampled = SamplingParams(temperature=0.8, max_tokens=20, seed=3)
    found = await asyncio.gather(*(collect(client, str(i), sampled) for i in range(4)))
    for i, events in enumerate(found):
        assert isinstance(events[-1], Finished)
        assert outputs(events)[str(i), 0] == reference(request(str(i), [1, 2], sampled), noise_key(3, 0))
    await client.close()


async def test_a_refusal_is_raised_before_the_first_event(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    with pytest.raises(ContextTooLong, match="1024"):
        [event async for event in client.generate(request("a", [1] * 2000))]
    await client.close()
    with pytest.raises(EngineDead, match="closed"):
        await collect(client, "b")


async def test_a_lost_replica_fails_its_request_and_the_next_finds_another(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    stream = client.generate(request("a", [1], ENDLESS))
    await anext(stream)
    handle.lost.add(handle.replicas[0].name)
    *_, last = [event async for event in stream]
    assert isinstance(last, Failed)
    assert isinstance(last.error, ReplicaLost)
    assert last.stats.num_output_tokens > 0
    assert isinstance((await collect(client, "b"))[-1], Finished)
    await client.close()


@pytest.mark.parametrize(("weights", "error"), [("table", None), ("other", "another exact group")])
async def test_a_stream_goes_on_in_a_replica_of_its_own_group_only(weights: str, error: str | None) -> None:
    """Also where what all replicas say of themselves is not what served the stream: while others take their place."""
    handle = TurnsHandle([replica(), replica(weights=weights)])
    client = FailoverClient([Member(await client_of(handle))])
    handle.num_streams = 1
    source = request("a", [1], SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True))
    stream = client.generate(source)
    events = [await anext(stream)]
    handle.lost.add(handle.replicas[1].name)
    events += [event async for event in stream]
    if error is None:
        assert isinstance(events[-1], Finished)
        assert outputs(events)["a", 0] == reference(source, noise_key(0, 0))
    else:
        assert isinstance(events[-1], Failed)
        assert isinstance(events[-1].error, NotContinued)
        assert error in str(events[-1].error)
    await client.close()
    await handle.close()


async def test_engines_of_other_weights_take_the_place_of_the_first() -> None:
    handle = TurnsHandle([replica()])
    inner = await client_of(handle)
    client = FailoverClient([Member(inner)])
    handle.replicas += [replica(weights="new"), replica(weights="new")]
    handle.lost.add(handle.replicas[0].name)
    await inner.refresh()
    stream = client.generate(request("a", [1], ENDLESS))
    await anext(stream)
    handle.lost.add(handle.replicas[1].name)
    *_, last = [event async for event in stream]
    assert isinstance(last, Finished), "a stream that began under the new weights goes on under them"
    await client.close()
    await handle.close()


async def test_token_ids_of_another_tokenizer_are_refused(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    handle.replicas.append(replica(tokenizer="other"))
    handle.num_streams = 2
    with pytest.raises(EngineError, match="the replica has other"):
        await collect(client, "a")
    await client.close()


async def test_what_was_told_reaches_replicas_that_start_later(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    client.apply_plan(PANIC_PLAN)
    client.stop_run("run-1")
    later = replica()
    handle.replicas.append(later)
    handle.num_streams = 2
    choice = SpeculationChoice(mode="on", rollout_run="run-1")
    events = [event async for event in client.generate(replace(request("a", [1]), speculation=choice))]
    assert isinstance(events[-1], Finished)
    [told] = later.obeyed.values()
    assert (told.plan, told.stopped_runs) == (PANIC_PLAN, ("run-1",))
    assert events[-1].stats.mode.reason == "rolled_back"
    await client.close()


async def test_an_older_word_of_the_same_door_changes_nothing() -> None:
    one = replica()
    door = ControlState(door="d", version=2, stopped_runs=("run-1", "run-2"))
    other = ControlState(door="e", version=1, stopped_runs=("run-3",))
    await one.obey(door)
    await one.obey(ControlState(door="d", version=1, plan=PANIC_PLAN))
    await one.obey(other)
    assert one.obeyed == {"d": door, "e": other}
    await one.close()


async def test_figures_add_up_and_the_observer_learns_of_all(handle: TurnsHandle) -> None:
    metrics = Metrics()
    client = await client_of(handle, metrics)
    found = [await collect(client, str(i)) for i in range(4)]
    await client.refresh()
    total = sum(events[-1].stats.num_output_tokens for events in found if isinstance(events[-1], Finished))
    assert f"prolepsis_generation_tokens_total {total}.0" in metrics.exposition().decode()
    assert client.health().ready
    assert {report.replica for report in client.replicas} == {one.name for one in handle.replicas}
    handle.replicas.append(replica())
    await client.refresh()
    assert len(client.replicas) == 3
    await client.close()
    assert not client.health().alive


async def test_replicas_know_what_waits_at_the_doors_that_are_there() -> None:
    now = 0.0
    one = replica(lambda: now)
    doors = [await client_of(TurnsHandle([one])) for _ in range(2)]
    doors[0].follow(lambda: Demand(2.5, 7))
    doors[1].follow(lambda: Demand(0.5, 1))
    for door in doors:
        await door.refresh()
    assert one.load() == {IN_FLIGHT: 0, WAITING: 8, QUEUE_AGE_S: 2.5}
    now = 4.0
    await doors[1].refresh()
    now = 6.0
    stream = doors[1].generate(request("a", [1], ENDLESS))
    await anext(stream)
    assert one.load() == {IN_FLIGHT: 1, WAITING: 1, QUEUE_AGE_S: 0.5}, "the first door has gone silent"
    await stream.aclose()
    for door in doors:
        await door.close()
    await one.close()


async def test_places_are_those_of_all_replicas(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    assert client.health().max_running == 16
    handle.lost.add(handle.replicas[0].name)
    await client.refresh()
    assert client.health().max_running == 8
    await client.close()


async def test_a_head_that_replicas_cannot_use_is_refused(handle: TurnsHandle) -> None:
    client = await client_of(handle)
    with pytest.raises(InvalidParameter, match="drafts nothing"):
        await client.swap_head("nonexistent")
    assert await client.heads() == []
    await client.close()
