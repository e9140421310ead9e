import asyncio
import threading
import time

import pytest

from prolepsis.web.turns import INLINE_BYTES, PAID_BACK, Turns

LARGE = INLINE_BYTES + 1


class Gate:
    """Work that runs until it is let go."""

    def __init__(self) -> None:
        self.began = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._open = threading.Event()

    def __call__(self) -> int:
        self._loop.call_soon_threadsafe(self.began.set)
        assert self._open.wait(60)
        return threading.get_ident()

    def open(self) -> None:
        self._open.set()


async def test_small_work_is_done_at_once_and_large_work_in_a_thread() -> None:
    turns = Turns()
    assert await turns.run("acme", INLINE_BYTES, threading.get_ident) == threading.get_ident()
    assert await turns.run("acme", LARGE, threading.get_ident) != threading.get_ident()


async def test_a_tenant_has_one_piece_of_large_work_at_a_time_and_others_go_on() -> None:
    turns, first, second, other = Turns(), Gate(), Gate(), Gate()
    work = [asyncio.create_task(turns.run("acme", LARGE, gate)) for gate in (first, second)]
    await first.began.wait()
    away = asyncio.create_task(turns.run("other", LARGE, other))
    await other.began.wait()
    assert not second.began.is_set()
    for gate in (other, first, second):
        gate.open()
    await asyncio.gather(*work, away)


async def test_what_held_the_interpreter_is_paid_back_by_its_tenant() -> None:
    turns, ends, starts = Turns(), list[float](), list[float]()

    def busy() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.02:
            pass
        ends.append(time.monotonic())

    await turns.run("acme", LARGE, busy)
    await turns.run("other", LARGE, lambda: None)
    await turns.run("acme", LARGE, lambda: starts.append(time.monotonic()))
    assert starts[0] - ends[0] >= PAID_BACK * 0.02


async def test_work_that_fails_gives_its_turn_away() -> None:
    turns = Turns()

    def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await turns.run("acme", LARGE, fail)


async def test_who_leaves_while_waiting_is_passed_over() -> None:
    turns, first = Turns(), Gate()
    running = asyncio.create_task(turns.run("acme", LARGE, first))
    await first.began.wait()
    leaves = asyncio.create_task(turns.run("acme", LARGE, lambda: 1))
    stays = asyncio.create_task(turns.run("acme", LARGE, lambda: 2))
    await asyncio.sleep(0)
    leaves.cancel()
    first.open()
    await running
    assert await stays == 2
    assert leaves.cancelled()
