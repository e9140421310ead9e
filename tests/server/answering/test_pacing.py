import asyncio
from collections.abc import AsyncIterator

import pytest

from prolepsis.core.errors import EngineError
from prolepsis.core.events import Event, Finished, TokenLogprobs, Tokens
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.pacing import MAX_STEP_S, Pacer, paced, split
from tests.virtual_time import virtual_time

END = Finished("r", RequestStats())


def step(*token_ids: int, index: int = 0) -> Tokens:
    return Tokens("r", index, token_ids, position=0)


def test_split_keeps_logprobs_and_ending() -> None:
    logprobs = tuple(TokenLogprobs(-float(i)) for i in range(3))
    parts = split(Tokens("r", 1, (7, 8, 9), 4, logprobs, "stop", "x"))
    assert [part.token_ids for part in parts] == [(7,), (8,), (9,)]
    assert [part.position for part in parts] == [4, 5, 6]
    assert [part.logprobs for part in parts] == [(one,) for one in logprobs]
    assert [part.finish_reason for part in parts] == [None, None, "stop"]
    assert [part.stop_reason for part in parts] == [None, None, "x"]


def test_tokens_are_spread_over_the_time_of_their_step() -> None:
    pacer = Pacer()
    assert [due for due, _ in pacer.take(step(1, 2), 10.0)] == [10.0, 10.0]
    assert [due for due, _ in pacer.take(step(3, 4, 5, 6), 10.2)] == pytest.approx([10.2, 10.25, 10.3, 10.35])
    assert [due for due, _ in pacer.take(step(7), 10.3)] == pytest.approx([10.4])
    assert pacer.last_due(10.3) == pytest.approx(10.5)


def test_no_token_is_later_than_the_bound() -> None:
    pacer, now = Pacer(), 0.0
    for gap in (5.0, 0.001, 0.2, 0.001, 0.001, 3.0, 0.01):
        now += gap
        assert all(now <= due <= now + MAX_STEP_S for due, _ in pacer.take(step(1, 2, 3), now))


async def events(*items: Event | float | Exception) -> AsyncIterator[Event]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        if isinstance(item, float):
            await asyncio.sleep(item)
        else:
            yield item


@virtual_time
async def test_a_stream_leaves_token_by_token_in_order() -> None:
    clock = asyncio.get_running_loop().time
    source = events(step(1), step(2, index=1), 0.06, step(3, 4, 5), step(6, 7, index=1), END)
    seen: list[Event] = []
    arrived: list[Event] = []
    times: list[float] = []
    async for event in paced(source, arrived.append):
        seen.append(event)
        times.append(clock())
    tokens = [event for event in seen if isinstance(event, Tokens)]
    assert [t.token_ids[0] for t in tokens if t.index == 0] == [1, 3, 4, 5]
    assert [t.token_ids[0] for t in tokens if t.index == 1] == [2, 6, 7]
    assert all(len(t.token_ids) == 1 for t in tokens)
    assert seen[-1] == END
    assert len(arrived) == 5, "each event is observed once, as it came"
    assert times == pytest.approx([0.0, 0.0, 0.06, 0.06, 0.08, 0.09, 0.1, 0.12]), "each step is spread over its 0.06 s"


@virtual_time
async def test_failures_come_after_the_tokens_before_them() -> None:
    stream = paced(events(step(1), 0.01, step(2, 3), EngineError("down")), lambda _: None)
    tokens = [await anext(stream) for _ in range(3)]
    assert [event.token_ids for event in tokens if isinstance(event, Tokens)] == [(1,), (2,), (3,)]
    with pytest.raises(EngineError):
        await anext(stream)


@virtual_time
async def test_leaving_early_closes_the_source() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[Event]:
        try:
            while True:
                yield step(1, 2)
                await asyncio.sleep(0.01)
        finally:
            closed.set()

    stream = paced(endless(), lambda _: None)
    await anext(stream)
    await stream.aclose()
    assert closed.is_set()
