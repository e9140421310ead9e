import asyncio
import threading
from collections.abc import Sequence

import pytest

from prolepsis.core.events import Event, Finished, Tokens
from prolepsis.core.stats import RequestStats
from prolepsis.engine.thread import INTERVAL_S, Handover
from tests.virtual_time import virtual_time
from tests.waiting import ended


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
