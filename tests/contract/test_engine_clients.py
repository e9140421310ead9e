"""What every client of an engine does, wherever the engine is: in a thread, behind a link, among others, elsewhere."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from prolepsis.adapters.vllm.build import VllmEngineClient, assemble
from prolepsis.core.client_draft import ClientDraft
from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ContextTooLong, DeadlineExceeded, EngineDead, InvalidParameter
from prolepsis.core.events import Aborted, Event, Failed, Finished, Terminal
from prolepsis.core.messages import Abort, OfferDraft
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.stats import ProposerCounts
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.thread import ThreadEngineClient
from prolepsis.remote.engines import Engines
from prolepsis.remote.members import Member
from tests.adapters.upstream.fakes import client_of, pool_at
from tests.adapters.vllm.table_plane import INFO, TablePlane, config
from tests.fakes import EOS, Letters, outputs, reference, request
from tests.remote.hosted import hosted, small
from tests.remote.replicas import TurnsHandle, front_end, replica_of
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

ENDLESS = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)
GREEDY, SAMPLED = SamplingParams(temperature=0.0, max_tokens=20), SamplingParams(temperature=0.8, max_tokens=20, seed=3)


@dataclass(frozen=True, slots=True)
class Subject:
    client: EngineClient
    is_table: bool = True
    """It answers as the table model does; else each answer of more than three tokens waits for its abort."""

    def endless(self, name: str = "a") -> GenerateRequest:
        return request(name, [1], ENDLESS if self.is_table else SamplingParams(max_tokens=64))

    def brief(self, name: str = "a") -> GenerateRequest:
        return request(name, [1], GREEDY if self.is_table else SamplingParams(max_tokens=3))

    async def collect(self, source: GenerateRequest) -> list[Event]:
        return [event async for event in self.client.generate(source)]


@asynccontextmanager
async def thread() -> AsyncIterator[Subject]:
    yield Subject(client := small())
    await client.close()


@asynccontextmanager
async def link() -> AsyncIterator[Subject]:
    async with hosted(small) as client:
        yield Subject(client)


@asynccontextmanager
async def engines() -> AsyncIterator[Subject]:
    yield Subject(client := Engines([Member(small()), Member(small())]))
    await client.close()


@asynccontextmanager
async def replicas() -> AsyncIterator[Subject]:
    handle = TurnsHandle([replica_of(small()), replica_of(small())])
    async with front_end(handle) as client:
        yield Subject(client)
    await handle.close()


@asynccontextmanager
async def vllm() -> AsyncIterator[Subject]:
    plane = TablePlane(num_blocks=128)
    info = replace(INFO, max_model_len=1024)
    yield Subject(client := VllmEngineClient(assemble(config(), plane, info, (EOS,), tokenizer=Letters()), plane))
    await client.close()
    assert plane.closed


@asynccontextmanager
async def upstream() -> AsyncIterator[Subject]:
    engine = FakeEngine("hello world")
    with served(engine) as server:
        pool = pool_at(server.url, "plain")
        pool.up(await asyncio.to_thread(pool.check))
        engine.hold_after = 1
        yield Subject(client := client_of([pool]), is_table=False)
        await client.close()


Open = Callable[[], AbstractAsyncContextManager[Subject]]


@pytest.fixture(params=[thread, link, engines, replicas, vllm, upstream], ids=lambda opened: opened.__name__)
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    opened: Open = request.param
    async with opened() as subject:
        yield subject


@pytest.mark.parametrize(("params", "n"), [(GREEDY, 1), (SAMPLED, 2)])
async def test_concurrent_requests_get_their_own_events(subject: Subject, params: SamplingParams, n: int) -> None:
    if not subject.is_table:
        params, n = SamplingParams(max_tokens=3), 1
    sources = [request(str(i), [i + 1, 2], params, n=n) for i in range(5)]
    for source, events in zip(sources, await asyncio.gather(*map(subject.collect, sources)), strict=True):
        assert {event.request_id for event in events} == {source.request_id}
        assert [isinstance(event, Terminal) for event in events].count(True) == 1
        assert isinstance(events[-1], Finished)
        found = {index: tokens for (_, index), tokens in outputs(events).items()}
        assert sum(map(len, found.values())) == events[-1].stats.num_output_tokens
        if subject.is_table and (params.greedy or subject.client.info.exactness == "strict"):
            assert found == {index: reference(source, noise_key(params.seed, index)) for index in range(n)}


async def test_an_id_is_free_again_when_its_request_has_ended(subject: Subject) -> None:
    events = [await subject.collect(subject.brief()) for _ in range(4)]
    assert len({tuple(outputs(each)["a", 0]) for each in events}) == 1


async def test_closing_the_iterator_early_aborts(subject: Subject) -> None:
    stream = subject.client.generate(subject.endless())
    await anext(stream)
    with pytest.raises(InvalidParameter, match="in use"):
        await anext(subject.client.generate(subject.brief()))
    await stream.aclose()  # type: ignore[attr-defined]  # all are generators
    for name in "bc":  # by then the engine has seen the abort, also where requests go to two in turn
        await subject.collect(subject.brief(name))
    if isinstance(subject.client, ThreadEngineClient):  # others are told of its load a moment later
        assert subject.client.health().num_running == 0
    assert isinstance((await subject.collect(subject.brief()))[-1], Finished)


async def test_an_abort_from_outside_ends_the_iterator(subject: Subject) -> None:
    stream = subject.client.generate(subject.endless())
    await anext(stream)
    subject.client.send(Abort("a"))
    subject.client.send(Abort("unknown"))
    *_, last = [event async for event in stream]
    assert isinstance(last, Aborted)
    assert (last.reason, last.stats.num_output_tokens > 0) == ("client", True)


async def test_an_abort_right_behind_its_request_is_not_lost(subject: Subject) -> None:
    first = asyncio.ensure_future(subject.collect(subject.endless()))
    await asyncio.sleep(0)
    subject.client.send(Abort("a"))
    assert isinstance((await first)[-1], Aborted)


async def test_a_refusal_comes_before_the_first_event(subject: Subject) -> None:
    with pytest.raises(ContextTooLong):
        await subject.collect(replace(subject.brief(), prompt_token_ids=(1,) * 2000))
    with pytest.raises(InvalidParameter, match="0 to"):
        await subject.collect(replace(subject.brief(), prompt_token_ids=(999,)))
    assert isinstance((await subject.collect(subject.brief()))[-1], Finished), "its id is free again"


async def test_a_request_ends_at_its_deadline(subject: Subject) -> None:
    *_, last = await subject.collect(replace(subject.endless(), deadline_s=0.05))
    assert isinstance(last, Failed)
    assert isinstance(last.error, DeadlineExceeded)


async def test_closing_ends_requests_with_their_figures_and_refuses_more(subject: Subject) -> None:
    assert subject.client.health().alive
    streams = [subject.client.generate(subject.endless(str(i))) for i in range(3)]
    for stream in streams:
        await anext(stream)
    await asyncio.gather(subject.client.close(), subject.client.close())
    for stream in streams:
        *_, last = [event async for event in stream]
        assert isinstance(last, Aborted)
        assert (last.reason, last.stats.num_output_tokens > 0) == ("shutdown", True)
    assert not subject.client.health().alive
    with pytest.raises(EngineDead, match="closed"):
        await subject.collect(subject.brief("late"))
    if isinstance(subject.client, ThreadEngineClient):
        assert not any(thread.name == "prolepsis-engine" and thread.is_alive() for thread in threading.enumerate())


async def test_a_client_that_never_served_closes(subject: Subject) -> None:
    await subject.client.close()


@pytest.mark.parametrize("opened", [thread, link, replicas], ids=lambda opened: opened.__name__)
async def test_a_draft_of_the_client_is_verified(opened: Open) -> None:
    params = SamplingParams(temperature=0.8, max_tokens=250, seed=3, ignore_eos=True)
    expected = reference(request("a", [1], params), noise_key(3, 0), max_model_len=1024)
    num_accepted = 0
    async with opened() as subject:
        for attempt in range(20):
            name = f"a{attempt}"
            stream = subject.client.generate(request(name, [1], params))
            events = [await anext(stream)]
            subject.client.send(OfferDraft("unknown", ClientDraft(200, (1,))))
            subject.client.send(OfferDraft(name, ClientDraft(200, tuple(expected[200:230]))))
            events += [event async for event in stream]
            assert isinstance(events[-1], Finished)
            assert outputs(events)[name, 0] == expected
            num_accepted = events[-1].stats.proposers.get("client", ProposerCounts()).num_accepted
            if num_accepted >= 20:  # else the engine had passed that place before the draft came
                break
    assert num_accepted >= 20
