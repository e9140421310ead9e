"""One request for many samples: what it holds against others, and that it ends with the same tokens."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from prolepsis.core.events import Event, Finished
from prolepsis.core.kill_scope import kill_scope
from prolepsis.core.requests import BACKGROUND, GenerateRequest, SamplingParams
from prolepsis.engine.chunks import ChunkLimit
from prolepsis.engine.drafting.cost import flat_cost
from prolepsis.engine.rows import Row
from prolepsis.engine.sampling.noise import noise_key
from prolepsis.engine.shares import share_of
from prolepsis.engine.step import Engine
from tests.clock import Clock
from tests.fakes import EngineSetup, build, drain, outputs, reference, request, submit, terminals

PLACES = 16
LARGE = SamplingParams(temperature=1.0, max_tokens=40, ignore_eos=True)
SHORT = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)


def of(tenant: str, source: GenerateRequest) -> GenerateRequest:
    return replace(source, kill_scopes=frozenset({kill_scope("tenant", tenant)}))


def large(n: int = 40, name: str = "large", tenant: str = "a", priority: int = 1) -> GenerateRequest:
    return of(tenant, request(name, [1, 2, 3], LARGE, n=n, priority=priority))


def opened(clock: Clock | None = None, chunks: ChunkLimit | None = None) -> Engine:
    return build(EngineSetup(max_sequences=PLACES, num_pages=200, max_step_tokens=64, clock=clock, chunks=chunks))


def rows_of(engine: Engine, name: str) -> int:
    return sum(row.sequence.request.request_id == name for row in engine._rows)


def check_outputs(events: list[Event], *sources: GenerateRequest) -> None:
    found, ends = outputs(events), terminals(events)
    for source in sources:
        assert isinstance(ends[source.request_id], Finished)
        for index in range(source.n):
            key = noise_key(source.params.seed, index)
            assert found[source.request_id, index] == reference(source, key)


def test_alone_it_takes_all_places() -> None:
    engine, source = opened(), large()
    submit(engine, source)
    events = engine.step() + engine.step() + engine.step()
    assert rows_of(engine, "large") == PLACES
    check_outputs(events + drain(engine), source)


@pytest.mark.parametrize(("own", "others"), [(1, (0,)), (1, (1,)), (0, (1,)), (0, (1, 0))])
def test_short_requests_of_others_never_wait_for_it(own: int, others: tuple[int, ...]) -> None:
    """Also the hundredth: a spare sample that gave way gives way again."""
    engine, source = opened(), large(priority=own)
    submit(engine, source)
    events = [event for _ in range(4) for event in engine.step()]
    for i in range(100):
        priority = others[i % len(others)]
        submit(engine, of("b", request(f"short {i}", [9, i % 7], SHORT, priority=priority)))
        news = [event for _ in range(SHORT.max_tokens) for event in engine.step()]
        events += news
        if "large" in terminals(events):
            break
        assert f"short {i}" in terminals(news)
    check_outputs(events + drain(engine), source)


def test_it_keeps_its_share_and_waits_with_the_rest_while_another_tenant_has_a_small_one() -> None:
    engine, source = opened(), large()
    stream = of("b", request("stream", [4, 5], replace(LARGE, max_tokens=100), priority=0))
    submit(engine, stream)
    events = engine.step()
    submit(engine, source)
    seen = []
    for _ in range(60):
        events += engine.step()
        seen.append(rows_of(engine, "large"))
    assert set(seen[5:]) == {share_of(PLACES)} == {2}
    submit(engine, large(name="other", tenant="c"))
    events += drain(engine)
    check_outputs(events, source, stream)


def test_large_requests_do_not_wait_for_each_other() -> None:
    engine = opened()
    submit(engine, large(6, "one", "a"), large(6, "two", "b"))
    events = [event for _ in range(5) for event in engine.step()]
    assert (rows_of(engine, "one"), rows_of(engine, "two")) == (6, 6)
    check_outputs(events + drain(engine), large(6, "one"), large(6, "two"))


def test_its_samples_take_up_its_share_one_after_the_other() -> None:
    """Where others fill the engine for ever, it goes on with the places of its share."""
    engine, source = opened(), replace(large(8), params=replace(LARGE, max_tokens=4))
    long = replace(LARGE, max_tokens=200)
    submit(engine, source)
    events = engine.step()
    submit(engine, *(of("b", request(f"b {i}", [i], long, priority=1)) for i in range(PLACES)))
    for _ in range(40):
        events += engine.step()
    assert "large" in terminals(events)
    check_outputs(events + drain(engine), source)


def background(name: str) -> GenerateRequest:
    return of("a", request(name, [1, 2], LARGE, priority=BACKGROUND))


def test_background_work_gives_its_part_of_a_pass_to_any_other() -> None:
    """Of the same tenant too; it takes part in a pass a second, and goes on with the same tokens."""
    clock = Clock()
    engine, lines = opened(clock), [background(f"line {i}") for i in range(PLACES)]
    submit(engine, *lines)
    events = engine.step() + engine.step()
    assert sum(rows_of(engine, one.request_id) for one in lines) == PLACES
    stream = of("a", request("stream", [4, 5], replace(LARGE, max_tokens=64), priority=1))
    submit(engine, stream)
    seen = []
    while "stream" not in terminals(events):
        clock.now += 0.06
        events += engine.step()
        seen.append(sum(rows_of(engine, one.request_id) for one in lines))
    assert len(seen) <= 67, "it never waited"
    assert sum(number > 0 for number in seen) == len(seen) * 6 // 100
    check_outputs(events + drain(engine), *lines, stream)


class AsPredicted(ChunkLimit):
    """Learns nothing of how fast the table is."""

    def observe(self, rows: Iterable[Row], ms: float) -> None:
        pass


def test_passes_of_background_work_are_short_while_others_are_expected() -> None:
    clock = Clock()
    chunks = AsPredicted(40.0, flat_cost(5.0, 1.0))  # a quarter of the limit has room for 5 rows
    engine, lines = opened(clock, chunks), [background(f"line {i}") for i in range(PLACES - 1)]
    submit(engine, *lines)
    events = [event for _ in range(4) for event in engine.step()]
    assert sum(rows_of(engine, one.request_id) for one in lines) == PLACES - 1, "nobody was there"
    short = request("short", [4, 5], SHORT)
    submit(engine, short)
    while "short" not in terminals(events):
        clock.now += 0.01
        events += engine.step()
    events += engine.step()
    assert sum(rows_of(engine, one.request_id) for one in lines) == 5
    clock.now += 10.0
    events += engine.step()
    assert sum(rows_of(engine, one.request_id) for one in lines) == PLACES - 1
    check_outputs(events + drain(engine), *lines, short)


def test_background_work_alone_has_all_passes() -> None:
    engine, line = opened(), background("line")
    submit(engine, line)
    events = [event for _ in range(LARGE.max_tokens + 1) for event in engine.step()]
    assert "line" in terminals(events)
    check_outputs(events, line)
