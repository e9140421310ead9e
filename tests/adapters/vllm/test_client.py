"""The client of an engine whose passes run elsewhere: the same contract as ours."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from threading import Event as ThreadEvent

import pytest

from prolepsis.adapters.vllm.build import VllmEngineClient
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ContextTooLong, DeadlineExceeded, EngineDead, InvalidParameter
from prolepsis.core.events import Aborted, Event, Failed, Finished
from prolepsis.core.messages import Abort, ApplyPlan
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.thread import ThreadEngineClient
from tests import fakes
from tests.adapters.vllm.table_plane import TablePlane, build
from tests.fakes import EngineSetup, outputs, request

LONG = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)


@pytest.fixture(params=["ours", "vllm"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[ThreadEngineClient]:
    plane = TablePlane()
    made: ThreadEngineClient = (
        ThreadEngineClient(fakes.build(EngineSetup()))
        if request.param == "ours"
        else VllmEngineClient(build(plane), plane)
    )
    yield made
    await made.close()


async def collect(client: EngineClient, source: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(source)]


async def test_concurrent_requests_get_their_own_events(client: ThreadEngineClient) -> None:
    found = await asyncio.gather(*(collect(client, request(str(i), [i + 1, 2])) for i in range(5)))
    for i, events in enumerate(found):
        assert {event.request_id for event in events} == {str(i)}
        assert isinstance(events[-1], Finished)
        assert len(outputs(events)[str(i), 0]) == events[-1].stats.num_output_tokens


async def test_a_request_may_have_the_id_of_one_that_has_just_ended(client: ThreadEngineClient) -> None:
    others = [await collect(client, request(f"other {i}", [i + 1, 2, 3])) for i in range(4)]
    again = [await collect(client, request("one", [i + 1, 2, 3])) for i in range(4)]
    assert [outputs(events)["one", 0] for events in again] == [
        outputs(events)[f"other {i}", 0] for i, events in enumerate(others)
    ]


async def test_an_early_end_and_an_abort_end_the_request(client: ThreadEngineClient) -> None:
    left = client.generate(request("a", [1], LONG))
    await anext(left)
    await left.aclose()
    for attempt in range(20):  # the engine may be done before it learns of the abort
        aborted = client.generate(request(f"b{attempt}", [1], LONG))
        await anext(aborted)
        client.send(Abort(f"b{attempt}"))
        *_, last = [event async for event in aborted]
        if isinstance(last, Aborted):
            break
    assert isinstance(last, Aborted)
    assert client.health().num_running == 0


async def test_a_request_that_cannot_be_served_is_refused_before_its_first_event(client: ThreadEngineClient) -> None:
    with pytest.raises(ContextTooLong):
        await collect(client, request("a", [1] * 2000))
    with pytest.raises(InvalidParameter):
        await collect(client, request("a", [99]))


async def test_a_deadline_fails_the_request(client: ThreadEngineClient) -> None:
    events = await collect(client, replace(request("a", [1], LONG), deadline_s=0.0))
    assert isinstance(events[-1], Failed)
    assert isinstance(events[-1].error, DeadlineExceeded)


async def test_a_plan_is_in_the_stats_of_requests_that_end_under_it(client: ThreadEngineClient) -> None:
    client.send(ApplyPlan(PANIC_PLAN))
    [*_, last] = await collect(client, request("a", [1]))
    assert isinstance(last, Finished)
    assert last.stats.mode.plan_version == PANIC_PLAN.version
    assert client.health().ready


async def test_a_closed_client_refuses() -> None:
    plane = TablePlane()
    client = VllmEngineClient(build(plane), plane)
    await collect(client, request("a", [1]))
    await client.close()
    assert plane.closed
    with pytest.raises(EngineDead):
        await collect(client, request("b", [1]))
    assert not client.health().alive
    await client.close()


class SlowToClose(TablePlane):
    """Closes when it may."""

    may_close = ThreadEvent()

    def close(self) -> None:
        assert self.may_close.wait(20), "the event loop waits"
        TablePlane.close(self)


async def test_the_event_loop_goes_on_while_vllm_ends() -> None:
    plane = SlowToClose()
    client = VllmEngineClient(build(plane), plane)
    await collect(client, request("a", [1]))
    closing = asyncio.create_task(client.close())
    asyncio.get_running_loop().call_later(0.05, plane.may_close.set)
    await closing
    assert plane.closed


async def test_heads_are_refused_and_the_exactness_is_normal() -> None:
    plane = TablePlane()
    client = VllmEngineClient(build(plane), plane)
    assert client.info.exactness == "normal"
    assert "near-tie" in client.info.exactness_reason
    assert not await client.heads()
    with pytest.raises(InvalidParameter, match="allowed with engine vllm"):
        await client.swap_head("auto")
    assert {counts.proposer for counts in client.proposer_counts()} <= {"suffix", "prompt_lookup"}
    await client.close()
