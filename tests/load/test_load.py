"""A hundred clients at once, good and bad: nobody is lost, nothing is left."""

import asyncio
import ctypes
import gc
import resource
import statistics
import time

import pytest
from hypothesis import settings

from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.sampling.noise import noise_key
from tests.fakes import EngineSetup, reference, request
from tests.load.clients import NUM_TOKENS, Outcome, Target, rush, streamed, whole
from tests.load.server import LetterTokenizer, TableServer, serving
from tests.waiting import wait_for

CLIENTS, AT_ONCE = (260, 200) if settings().max_examples > 25 else (130, 100)  # more by night
PLATEAU_BYTES = 8 << 20


def expected(prompt: str) -> str:
    """What the table says, without engine or server."""
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    source = request("r", LetterTokenizer().encode(prompt), params)
    return LetterTokenizer().decode(reference(source, noise_key(0, 0), max_model_len=512))


def resident_bytes() -> int:
    """Resident memory without what the allocator keeps for later."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_rush_of_all_kinds_of_clients(capsys: pytest.CaptureFixture[str]) -> None:
    """Each round ends every request once and returns every page; memory grows in the first rounds only."""
    outcome = Outcome()
    with serving(
        TableServer(ServerConfig(max_in_engine=16), EngineSetup(max_model_len=512, num_pages=256, max_sequences=16))
    ) as server:
        target = Target(server.port, outcome)
        sizes: list[int] = []
        started = time.perf_counter()
        while len(sizes) < 3 or (sizes[-1] - sizes[-2] >= PLATEAU_BYTES and len(sizes) < 6):
            asyncio.run(rush(target, CLIENTS, AT_ONCE))
            server.check_ended_once()
            sizes.append(resident_bytes())
        seconds = time.perf_counter() - started
    assert set(outcome.statuses) == {200}
    assert {prompt: {expected(prompt)} for prompt in outcome.answers} == outcome.answers
    assert len(outcome.answers) == 5
    assert sizes[-1] - sizes[-2] < PLATEAU_BYTES, f"memory grows: {sizes}"
    cuts = statistics.quantiles(outcome.latencies, n=20)
    with capsys.disabled():
        print(
            f"\nload: {len(sizes) * CLIENTS} clients, {AT_ONCE} at once, {seconds:.1f} s, "
            f"{len(outcome.latencies)} healthy: p50 {cuts[9] * 1000:.0f} ms, p95 {cuts[18] * 1000:.0f} ms, "
            f"resident {[size >> 20 for size in sizes]} MiB"
        )


def test_a_full_queue_answers_at_once_and_the_rest_is_served() -> None:
    outcome = Outcome()
    config = ServerConfig(max_in_engine=2, limits=LimitTerms(max_queued=10, max_queued_per_tenant=10))
    with serving(TableServer(config)) as server:

        async def flood() -> None:
            target = Target(server.port, outcome)
            async with asyncio.TaskGroup() as group:
                for i in range(120):
                    group.create_task((whole, streamed)[i % 2](target, "banana"))

        asyncio.run(flood())
        server.check_ended_once()
        refused = server.sample("admission_refused_total", reason="server_full")
    assert set(outcome.statuses) == {200, 503}
    assert outcome.statuses.count(503) == refused
    assert outcome.statuses.count(200) == len(server.client.submitted) >= 12


def test_a_drain_in_the_middle_of_a_rush_answers_everybody() -> None:
    """Who runs is served, who waits or comes late is told, nobody hangs."""
    outcome = Outcome()
    with serving(TableServer(ServerConfig(max_in_engine=4))) as server:

        async def interrupted(target: Target) -> None:
            async with asyncio.timeout(120), asyncio.TaskGroup() as group:
                for i in range(60):
                    group.create_task((whole, streamed)[i % 2](target, "banana"))
                await asyncio.to_thread(wait_for, lambda: len(server.client.ended) > 5)
                server.gate.drain()
                server.loop.call_soon_threadsafe(server.gate.end_waiting)
                group.create_task(whole(target, "late"))

        asyncio.run(interrupted(Target(server.port, outcome)))
        server.check_ended_once()
    assert set(outcome.statuses) == {200, 503}
    assert len(outcome.statuses) == 61
    assert "late" not in outcome.answers
