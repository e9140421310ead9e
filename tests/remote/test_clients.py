"""What an engine's client does, whether the engine is in its thread, in a process of its own or elsewhere."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ContextTooLong, InvalidParameter
from prolepsis.core.events import Aborted, Event, Finished
from prolepsis.core.figures import EngineObserver
from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.drafting.proposers.expected_text import ClientProposer
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.thread import ThreadEngineClient
from tests.fakes import EngineSetup, build, outputs, reference, request
from tests.remote.hosted import hosted
from tests.remote.replicas import TurnsHandle, front_end, replica_of

ENDLESS = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)


def small(observer: EngineObserver | None = None) -> ThreadEngineClient:
    setup = EngineSetup(max_model_len=1024, observer=observer, proposers=[ClientProposer()])
    return ThreadEngineClient(build(setup))


@pytest.fixture(params=["thread", "process", "replica"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[EngineClient]:
    if request.param == "process":
        async with hosted(small) as hosted_client:
            yield hosted_client
    elif request.param == "replica":
        handle = TurnsHandle([replica_of(small())])
        async with front_end(handle) as engines:
            yield engines
        await handle.close()
    else:
        threaded = small()
        yield threaded
        await threaded.close()


async def collect(client: EngineClient, source: GenerateRequest) -> list[Event]:
    return [event async for event in client.generate(source)]


GREEDY = SamplingParams(temperature=0.0, max_tokens=20)
SAMPLED = SamplingParams(temperature=0.8, max_tokens=20, seed=3)


@pytest.mark.parametrize(("params", "n"), [(GREEDY, 1), (SAMPLED, 2)])
async def test_concurrent_requests_get_their_own_events(client: EngineClient, params: SamplingParams, n: int) -> None:
    sources = [request(str(i), [i + 1, 2], params, n=n) for i in range(5)]
    found = await asyncio.gather(*(collect(client, source) for source in sources))
    for source, events in zip(sources, found, strict=True):
        assert {event.request_id for event in events} == {source.request_id}
        assert isinstance(events[-1], Finished)
        for index in range(n):
            assert outputs(events)[source.request_id, index] == reference(source, noise_key(params.seed, index))


async def test_closing_the_iterator_early_aborts(client: EngineClient) -> None:
    stream = client.generate(request("a", [1], ENDLESS))
    await anext(stream)
    with pytest.raises(InvalidParameter, match="in use"):
        await anext(client.generate(request("a", [1])))
    await stream.aclose()  # type: ignore[attr-defined]  # both are generators
    await collect(client, request("b", [2]))  # by then the engine has seen the abort
    if isinstance(client, ThreadEngineClient):  # a process tells its load a moment later
        assert client.health().num_running == 0
    assert isinstance((await collect(client, request("a", [2])))[-1], Finished)


async def test_abort_from_outside_ends_the_iterator(client: EngineClient) -> None:
    stream = client.generate(request("a", [1], ENDLESS))
    await anext(stream)
    client.send(Abort("a"))
    client.send(Abort("unknown"))
    rest = [event async for event in stream]
    assert isinstance(rest[-1], Aborted)


async def test_an_abort_right_behind_its_request_is_not_lost(client: EngineClient) -> None:
    first = asyncio.ensure_future(collect(client, request("a", [1], ENDLESS)))
    await asyncio.sleep(0)
    client.send(Abort("a"))
    assert isinstance((await first)[-1], Aborted)


async def test_a_draft_of_the_client_is_verified(client: EngineClient) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=250, seed=3, ignore_eos=True)
    expected = reference(request("a", [1], params), noise_key(3, 0), max_model_len=1024)
    num_accepted = 0
    for attempt in range(20):
        name = f"a{attempt}"
        stream = client.generate(request(name, [1], params))
        events = [await anext(stream)]
        client.send(OfferDraft("unknown", ClientDraft(200, (1,))))
        client.send(OfferDraft(name, ClientDraft(200, tuple(expected[200:230]))))
        events += [event async for event in stream]
        assert isinstance(events[-1], Finished)
        assert outputs(events)[name, 0] == expected
        num_accepted = events[-1].stats.proposers.get("client", ProposerCounts()).num_accepted
        if num_accepted >= 20:  # else the engine had passed that place before the draft came
            break
    assert num_accepted >= 20


async def test_refusal_comes_before_the_first_event(client: EngineClient) -> None:
    with pytest.raises(ContextTooLong, match="1024"):
        await collect(client, request("a", [1] * 2000))
    assert isinstance((await collect(client, request("a", [1])))[-1], Finished), "its id is free again"
