"""The engine behind a socket is the engine in its thread: the same events, errors and ends."""

import asyncio
import socket
from dataclasses import replace

import pytest

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.errors import DeadlineExceeded, EngineDead, EngineError, InvalidParameter, ModelError, UserError
from prolepsis.core.events import Failed, Finished
from prolepsis.core.figures import Figure
from prolepsis.core.messages import Abort, ApplyPlan, InjectFault, LearnedAcceptance, SetCorpora, StopRun
from prolepsis.core.plan import PANIC_PLAN
from prolepsis.core.requests import SamplingParams
from prolepsis.core.stats import AcceptanceState, RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from tests.fake_client import FakeEngineClient, answer
from tests.fakes import request
from tests.remote.hosted import FakeProcess, hosted, silent, small
from tests.remote.replicas import until
from tests.remote.scripted_engines import collect

ENDLESS = SamplingParams(temperature=0.0, max_tokens=100_000, ignore_eos=True)


async def test_the_observer_learns_of_steps_and_requests() -> None:
    metrics = Metrics()
    async with hosted(small, metrics) as client:
        [*_, last] = await collect(client, request("a", [1]))
    text = metrics.exposition().decode()
    assert f"prolepsis_generation_tokens_total {last.stats.num_output_tokens}.0" in text  # type: ignore[union-attr]
    assert "prolepsis_steps_total" in text


async def test_commands_and_questions_reach_the_engine() -> None:
    engine = FakeEngineClient(lambda source: [Finished(source.request_id, RequestStats())])
    async with hosted(lambda _: engine) as client:
        client.send(ApplyPlan(PANIC_PLAN))
        client.send(StopRun("run-1"))
        client.send(SetCorpora("tenant:a", (b"\x01\0\0\0", b"")))
        client.send(learned := LearnedAcceptance("suffix", "fp", AcceptanceState((0.5, 2.0), {3: (0.5, 1.0)})))
        swapped = await client.swap_head("other")
        assert engine.plans == [PANIC_PLAN]
        assert engine.stopped == ["run-1"]
        assert engine.corpora == {"tenant:a": (b"\x01\0\0\0", b"")}
        assert engine.learned == [learned]
        assert engine.swaps == ["other"]
        assert swapped.current == client.info.draft_head, "the facts were there before the answer"
        assert client.health() == engine.reported
        engine.heads_error = ModelError("the folder is gone")
        with pytest.raises(ModelError, match="the folder is gone"):
            await client.heads()


async def test_health_names_this_front_ends_requests_by_their_own_ids() -> None:
    """The host has ids of its own for requests, by which no front end would find what waits or is being read."""
    engine = FakeEngineClient(lambda source: [])
    async with hosted(lambda _: engine) as client:
        asking = asyncio.ensure_future(collect(client, request("mine", [1])))
        await engine.held.wait()
        read = PromptProgress(engine.requests[0].request_id, 4096, 0, 7274)
        names = (read.request_id, "9/of another")
        reading = tuple(replace(read, request_id=name) for name in names)
        engine.reported = replace(engine.reported, not_begun=names, reading=reading)
        await client.swap_head("other")  # the health of now comes with its answer
        assert client.health().not_begun == ("mine",)
        assert client.health().reading == (replace(read, request_id="mine"),)
        client.send(Abort("mine"))
        await asking


async def test_a_lost_process_fails_each_of_its_requests() -> None:
    async with hosted(small) as client:
        streams = [client.generate(request(name, [1], ENDLESS)) for name in "ab"]
        for stream in streams:
            await anext(stream)
        asked = asyncio.ensure_future(client.heads())
        assert client.process is not None
        client.process.kill()
        for stream in streams:
            *_, last = [event async for event in stream]
            assert isinstance(last, Failed)
            assert isinstance(last.error, EngineDead)
            assert "SIGKILL" in str(last.error)
            assert last.stats.num_output_tokens > 0
        with pytest.raises(EngineDead, match="SIGKILL"):
            await collect(client, request("c", [1]))
        assert "SIGKILL" in client.health().detail
        assert not client.health().alive
        await asyncio.wait([asked])


class Confused(Metrics):
    def observe(self, figure: Figure) -> None:
        raise ValueError("a figure of no kind")


async def test_an_observer_that_raises_costs_figures_and_no_request() -> None:
    async with hosted(small, Confused()) as client:
        [*_, last] = await collect(client, request("a", [1]))
        assert isinstance(last, Finished)
        assert client.health().alive


async def test_a_message_that_cannot_be_handled_ends_the_process_and_its_requests() -> None:
    async with hosted(small) as client:
        stream = client.generate(request("a", [1], ENDLESS))
        await anext(stream)
        assert isinstance(client.process, FakeProcess)
        assert client.process.connection is not None
        client.process.connection.send(bytes([0, 0, 0, 2]) + b"??")
        *_, last = [event async for event in stream]
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineDead)
        assert client.process.poll() == -9


async def test_a_request_that_cannot_travel_is_refused_and_costs_no_other() -> None:
    async with hosted(small) as client:
        other = asyncio.ensure_future(collect(client, request("a", [1])))
        with pytest.raises(InvalidParameter, match="cannot be sent"):
            await collect(client, replace(request("b", [1]), cache_salt="half a character: \ud800"))
        assert isinstance((await other)[-1], Finished)


class OddField(UserError):
    """Has a field that cannot travel."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.param = object()  # type: ignore[assignment]


async def test_an_error_that_cannot_travel_is_raised_in_words() -> None:
    async with hosted(lambda _: FakeEngineClient(lambda source: [OddField("too odd")])) as client:
        with pytest.raises(EngineError, match="OddField: too odd"):
            await collect(client, request("a", [1]))


async def test_a_deadline_holds_though_the_process_hangs() -> None:
    async with silent() as client:
        [last] = await collect(client, replace(request("a", [1]), deadline_s=0.01))
        assert isinstance(last, Failed)
        assert isinstance(last.error, DeadlineExceeded)


async def test_a_closing_that_is_cancelled_kills_the_process_and_ends() -> None:
    async with silent() as client:
        closing = [asyncio.create_task(client.close()) for _ in range(2)]
        await asyncio.sleep(0)
        assert isinstance(client.process, FakeProcess)
        assert not client.process.killed
        closing[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing[0]
        assert client.process.killed
        await closing[1]
        assert client.process.ended.is_set()


async def test_a_second_closing_waits_for_the_first() -> None:
    async with silent() as client:
        first, second = (asyncio.create_task(client.close()) for _ in range(2))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not second.done()
        assert client.process is not None
        client.process.kill()
        await asyncio.gather(first, second)


async def test_a_process_that_outlives_its_connection_is_lost_and_killed() -> None:
    async with silent(tick_s=0.1) as client:
        asked = asyncio.create_task(collect(client, request("a", [1])))
        await asyncio.sleep(0)
        assert isinstance(client.process, FakeProcess)
        assert client.process.connection is not None
        client.process.connection.shutdown(socket.SHUT_RDWR)
        await until(lambda: not client.health().alive)
        assert not client.process.killed
        with pytest.raises(EngineDead, match="the connection to the engine's host ended"):
            await collect(client, request("b", [1]))
        [last] = await asked
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineDead)
        assert "outlived its connection" in str(last.error)
        assert client.process.killed


async def test_what_was_sent_right_before_closing_arrives() -> None:
    engine = FakeEngineClient(lambda source: [])
    async with hosted(lambda _: engine) as client:
        client.attach()
        await asyncio.sleep(0.05)
        client.send(StopRun("run-1"))
        await client.close()
    assert engine.stopped == ["run-1"]


async def test_a_fault_ends_with_the_front_end_that_injected_it() -> None:
    engine = FakeEngineClient(lambda source: [])
    async with hosted(lambda _: engine) as client:
        client.attach()
        client.send(InjectFault("raise"))
        await until(lambda: engine.faults == ["raise"])
    assert engine.faults == ["raise", "none"]


async def test_a_deadline_after_the_end_is_none() -> None:
    """The reader is slow: the terminal event waits for it."""
    async with hosted(lambda _: FakeEngineClient(answer([[1], [2]]))) as client:
        stream = client.generate(replace(request("a", [1]), deadline_s=0.01))
        await anext(stream)
        faults: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        await asyncio.sleep(0.15)
        *_, last = [event async for event in stream]
        assert isinstance(last, Finished)
        assert faults == []


async def test_a_silent_process_is_not_ready() -> None:
    async with silent(tick_s=0.001) as client:
        assert client.health().ready
        while client.health().ready:  # noqa: ASYNC110  # health is asked for, it tells nothing by itself
            await asyncio.sleep(0)
        assert client.health().alive
        assert "silent for" in client.health().detail


async def test_a_process_that_stays_silent_is_killed() -> None:
    async with silent(lost_after_s=0.05, tick_s=0.01) as client:
        [last] = await collect(client, request("a", [1]))
        assert isinstance(last, Failed)
        assert isinstance(last.error, EngineDead)
        assert client.process is not None
        assert client.process.poll() == -9
        assert not client.health().alive
