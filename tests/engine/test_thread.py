"""The engine in its thread, asked from an event loop, and how events get from one to the other."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace

import pytest

from prolepsis.core.engine_client import EngineClient
from prolepsis.core.errors import ContextTooLong, DeadlineExceeded, EngineDead, InvalidGrammar
from prolepsis.core.events import Aborted, Event, Failed, Finished, Tokens
from prolepsis.core.messages import ApplyPlan
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import GenerateRequest, GrammarSpec, SamplingParams
from prolepsis.core.stats import RequestStats
from prolepsis.engine.runner import Runner
from prolepsis.engine.sampling.sampler import Sampler
from prolepsis.engine.step import Engine
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from prolepsis.engine.thread import INTERVAL_S, Handover, ThreadEngineClient
from prolepsis.engine.verification import Verification
from tests.engine.text.grammar.tiny import few_tokens, text_of
from tests.fakes import EOS, VOCAB, EngineSetup, TableModel, build, build_as, outputs, request, run
from tests.virtual_time import virtual_time
from tests.waiting import ended

ENDLESS = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)


@pytest.fixture
async def client() -> AsyncIterator[ThreadEngineClient]:
    client = ThreadEngineClient(build(EngineSetup(max_model_len=1024)))
    yield client
    await client.close()


async def collect(client: EngineClient, request_id: str, prompt: list[int]) -> list[Event]:
    return [event async for event in client.generate(request(request_id, prompt))]


def num_steps(engine: Engine) -> tuple[int, int]:
    assert isinstance(engine.runner, Runner)
    model = engine.runner.model
    assert isinstance(model, TableModel)
    return model.num_passes, engine.timings.num_steps


async def test_idle_engine_sleeps_and_wakes(client: ThreadEngineClient) -> None:
    """It takes the steps of its requests, as an engine that is stepped by hand while there is work, and no others."""
    await collect(client, "a", [1])
    client.send(ApplyPlan(PANIC_PLAN))
    events = await collect(client, "b", [1])
    assert isinstance(events[-1], Finished)
    assert events[-1].stats.mode.plan_version == PANIC_PLAN.version
    by_hand = build(EngineSetup(max_model_len=1024))
    run(by_hand, request("a", [1]))
    by_hand.send(ApplyPlan(PANIC_PLAN))
    run(by_hand, request("b", [1]))
    assert num_steps(client.engine) == num_steps(by_hand)


async def test_only_a_paced_request_under_way_has_its_steps_handed_over_one_by_one(client: ThreadEngineClient) -> None:
    handover = client._start()
    async with aclosing(client.generate(replace(request("a", [1], ENDLESS), paced=True))) as stream:
        await anext(stream)
        assert handover.num_paced == 1
        await collect(client, "b", [1])
        assert handover.num_paced == 1
    assert handover.num_paced == 0


async def test_bug_that_kills_the_thread_fails_every_request() -> None:
    class Broken(Engine):
        def step(self) -> list[Event]:
            raise SystemExit("out of step")

    client = ThreadEngineClient(build_as(Broken, EngineSetup(max_model_len=1024)))
    end = await _drain(client, "a")
    assert isinstance(end, Failed | Aborted)
    with pytest.raises(EngineDead):
        await collect(client, "b", [1])
    await client.close()


class SlowGrammars(Grammars):
    """Compiles only while it may, and notes who compiled."""

    def __init__(self) -> None:
        super().__init__(few_tokens().to_str, VOCAB, (EOS,), max_compiled=1)
        self.may_go_on = threading.Event()
        self.threads: list[str] = []
        self.compiled: list[str] = []

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        self.compiled.append(spec.source)
        self.threads.append(threading.current_thread().name)
        assert self.may_go_on.wait(10)
        return super()._compile(spec)


async def test_compiling_a_grammar_holds_up_neither_other_requests_nor_the_engine() -> None:
    grammars = SlowGrammars()
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)
    client = ThreadEngineClient(build(EngineSetup(grammars=grammars, verifier=verifier)))

    async def constrained(name: str, text: str) -> list[Event]:
        spec = GrammarSpec("regex", text)
        return [event async for event in client.generate(replace(request(name, [1, 2]), grammar=spec))]

    waiting = asyncio.create_task(constrained("a", "ab[01]{3}"))
    assert isinstance((await collect(client, "b", [1]))[-1], Finished)
    assert not waiting.done()
    with pytest.raises(ContextTooLong):
        await collect(client, "c", [1] * 2000)
    grammars.may_go_on.set()
    both = await asyncio.gather(waiting, constrained("d", "01*"))  # more than the cache keeps
    assert text_of(few_tokens(), outputs(both[0])["a", 0]).startswith("ab")
    assert text_of(few_tokens(), outputs(both[1])["d", 0]).startswith("0")
    assert len(grammars.threads) == 2
    assert not any(name == "prolepsis-engine" for name in grammars.threads)
    with pytest.raises(InvalidGrammar):
        await constrained("e", "(")
    await client.close()


async def test_one_tenants_grammars_are_compiled_one_at_a_time_also_when_it_leaves() -> None:
    grammars = SlowGrammars()
    verifier = Verification(Sampler(VOCAB, (EOS,)), max_model_len=256)
    client = ThreadEngineClient(build(EngineSetup(grammars=grammars, verifier=verifier)))

    def constrained(tenant: str, text: str) -> "asyncio.Task[Event]":
        scopes, spec = frozenset({f"tenant:{tenant}"}), GrammarSpec("regex", text)
        source = replace(request(f"{tenant} {text}", [1, 2]), grammar=spec, kill_scopes=scopes)
        return asyncio.create_task(_last(client, source))

    flood = [constrained("flood", f"[01]{{{i}}}") for i in range(3, 7)]
    while not grammars.threads:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    flood[0].cancel()
    other = constrained("other", "[01]{2}")
    while len(grammars.threads) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    grammars.may_go_on.set()
    assert isinstance(await other, Finished)
    ended = await asyncio.gather(*flood, return_exceptions=True)
    assert [type(one) for one in ended] == [asyncio.CancelledError, *[Finished] * 3]
    assert grammars.compiled[1] == "[01]{2}"
    await client.close()


async def test_a_deadline_counts_the_wait_for_a_grammar() -> None:
    grammars = SlowGrammars()
    client = ThreadEngineClient(build(EngineSetup(grammars=grammars)))
    source = replace(request("a", [1, 2]), grammar=GrammarSpec("regex", "[01]{3}"), deadline_s=0.01)
    with pytest.raises(DeadlineExceeded, match="grammar"):
        await _last(client, source)
    grammars.may_go_on.set()
    await client.close()


async def test_an_engine_that_ends_while_a_grammar_compiles_refuses_the_request() -> None:
    class Broken(Engine):
        def step(self) -> list[Event]:
            raise SystemExit("out of step")

    grammars = SlowGrammars()
    client = ThreadEngineClient(build_as(Broken, EngineSetup(grammars=grammars)))
    source = replace(request("a", [1, 2]), grammar=GrammarSpec("regex", "[01]{3}"))
    waiting = asyncio.create_task(_last(client, source))
    while not grammars.threads:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await _drain(client, "b")
    grammars.may_go_on.set()
    async with asyncio.timeout(5.0):
        with pytest.raises(EngineDead):
            await waiting
    await client.close()


async def test_a_grammar_that_waits_for_a_thread_when_the_client_closes_is_refused() -> None:
    grammars = SlowGrammars()
    client = ThreadEngineClient(build(EngineSetup(grammars=grammars)))

    def constrained(tenant: str) -> "asyncio.Task[Event]":
        scopes, spec = frozenset({f"tenant:{tenant}"}), GrammarSpec("regex", "[01]{3}" + tenant)
        return asyncio.create_task(_last(client, replace(request(tenant, [1, 2]), grammar=spec, kill_scopes=scopes)))

    busy = [constrained("0"), constrained("1")]
    while len(grammars.threads) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    late = constrained("01")
    await asyncio.sleep(0)  # it begins, and is put behind the two
    await asyncio.sleep(0)
    await client.close()
    with pytest.raises(EngineDead, match="closed"):
        await late
    grammars.may_go_on.set()
    assert all(isinstance(end, EngineDead) for end in await asyncio.gather(*busy, return_exceptions=True))


async def test_requests_that_wait_for_the_turn_of_their_grammar_end_when_the_client_closes() -> None:
    grammars = SlowGrammars()
    client = ThreadEngineClient(build(EngineSetup(grammars=grammars)))
    sources = [replace(request(text, [1, 2]), grammar=GrammarSpec("regex", text)) for text in ("[01]", "0", "1", "10")]
    waiting = [asyncio.create_task(_last(client, source)) for source in sources]
    while not grammars.threads:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    await client.close()
    grammars.may_go_on.set()
    async with asyncio.timeout(5.0):
        ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(one) for one in ended] == [EngineDead] * 4


async def _drain(client: EngineClient, request_id: str) -> Event:
    return await _last(client, request(request_id, [1], ENDLESS))


async def _last(client: EngineClient, source: GenerateRequest) -> Event:
    events = [event async for event in client.generate(source)]
    return events[-1]


def tokens(position: int) -> Tokens:
    return Tokens("r", 0, (7,), position=position)


class Reader:
    """Keeps what is delivered, and when."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.steps: list[tuple[float, Sequence[Event]]] = []

    def deliver(self, events: Sequence[Event]) -> None:
        self.steps.append((self.loop.time(), events))

    @property
    def positions(self) -> list[int]:
        return [event.position for _, events in self.steps for event in events if isinstance(event, Tokens)]

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.steps]


async def put_steps(number: int, step_s: float) -> Reader:
    """Hand over a request's steps, one every `step_s` seconds."""
    reader = Reader()
    handover = Handover(reader.loop, reader.deliver)
    for position in range(number):
        handover.put([tokens(position)])
        await asyncio.sleep(step_s)
    await asyncio.sleep(INTERVAL_S)
    handover.close()
    return reader


@virtual_time
async def test_short_steps_are_handed_over_together() -> None:
    step_s = INTERVAL_S / 4
    reader = await put_steps(40, step_s)
    assert reader.positions == list(range(40))
    assert len(set(reader.times)) == pytest.approx(40 / 4, abs=2)
    assert all(time < position * step_s + 1.001 * INTERVAL_S for position, time in enumerate(reader.times))


@virtual_time
async def test_long_steps_are_handed_over_one_by_one() -> None:
    step_s = 1.1 * INTERVAL_S
    reader = await put_steps(5, step_s)
    assert reader.times == pytest.approx([position * step_s for position in range(5)])


@virtual_time
async def test_steps_that_stop_are_not_held_back() -> None:
    reader = await put_steps(3, INTERVAL_S / 4)
    assert reader.positions == [0, 1, 2]
    assert reader.times[-1] <= INTERVAL_S / 2 + INTERVAL_S


@virtual_time
async def test_first_and_last_events_wait_for_nothing() -> None:
    reader = Reader()
    handover = Handover(reader.loop, reader.deliver)
    for position in range(1, 5):
        handover.put([tokens(position)])
        await asyncio.sleep(INTERVAL_S / 10)
    at, seen = reader.loop.time(), len(reader.steps)
    for event in (tokens(0), Finished("r", RequestStats())):
        assert len(reader.steps) == seen
        handover.put([tokens(5), event])
        await asyncio.sleep(0)
        assert reader.steps[-1] == (at, [tokens(5), event])
        seen = len(reader.steps)
    handover.close()


@virtual_time
async def test_steps_of_a_paced_request_wait_for_nothing() -> None:
    reader = Reader()
    handover = Handover(reader.loop, reader.deliver)
    handover.num_paced = 1
    for position in range(1, 6):
        handover.put([tokens(position)])
        await asyncio.sleep(INTERVAL_S / 10)
    assert reader.times == pytest.approx([step * INTERVAL_S / 10 for step in range(5)])
    handover.close()


async def test_nothing_is_lost_or_turned_round_between_threads() -> None:
    reader, number = Reader(), 3000
    handover, found = Handover(reader.loop, reader.deliver), asyncio.Event()

    def run() -> None:
        for position in range(1, number):
            handover.put([tokens(position)])
        handover.call(found.set)

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.wait_for(found.wait(), 60)
    ended(thread)
    assert reader.positions == list(range(1, number)), "what is called comes after all that was put"
    handover.put([tokens(number)])
    await asyncio.sleep(2 * INTERVAL_S)
    assert reader.positions[-1] == number
    handover.close()


async def test_a_closed_loop_is_told() -> None:
    loop = asyncio.new_event_loop()
    handover = Handover(loop, lambda _: None)
    loop.close()
    with pytest.raises(RuntimeError):
        handover.put([tokens(0)])
