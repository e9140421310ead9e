"""The client of an engine whose passes run elsewhere: the same contract as ours."""

import asyncio
from collections.abc import AsyncIterator
from threading import Event as ThreadEvent

import pytest

from prolepsis.adapters.vllm.build import VllmEngineClient
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import Event, Finished
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.engine.thread import ThreadEngineClient
from tests import fakes
from tests.adapters.vllm.table_plane import TablePlane, build
from tests.fakes import EngineSetup, request

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


async def test_a_plan_is_in_the_stats_of_requests_that_end_under_it(client: ThreadEngineClient) -> None:
    client.send(ApplyPlan(PANIC_PLAN))
    [*_, last] = await collect(client, request("a", [1]))
    assert isinstance(last, Finished)
    assert last.stats.mode.plan_version == PANIC_PLAN.version
    assert client.health().ready


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
