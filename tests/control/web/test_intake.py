import asyncio
import os
import sys
import threading
import time

import pytest
from starlette.requests import Request
from starlette.types import Message

from prolepsis.control.web.intake import (
    BODIES_OF_TENANT,
    INLINE_BYTES,
    NICENESS,
    PAID_BACK,
    PERIOD_S,
    SLICE_S,
    LargeWork,
    Reading,
    RoundRobin,
    TimeSlice,
    Uploads,
    body_limit,
)
from prolepsis.control.web.refusals import Refused
from tests.clock import Clock
from tests.virtual_time import virtual_time

SIZE = 100


def request(*chunks: int) -> Request:
    parts = [b"x" * size for size in chunks]
    messages = [{"type": "http.request", "body": part, "more_body": i < len(parts) - 1} for i, part in enumerate(parts)]

    async def receive() -> Message:
        return messages.pop(0)

    return Request({"type": "http", "headers": [], "state": {}}, receive)


async def test_a_body_is_read_up_to_its_size() -> None:
    uploads = Uploads(SIZE)
    async with uploads.read(request(60, 0, 40), "acme") as raw:
        assert len(raw) == SIZE
    with pytest.raises(Refused) as refused:
        async with uploads.read(request(60, 41), "acme"):
            pass
    assert (refused.value.status, refused.value.reason) == (413, "body_too_large")


async def test_only_the_tenant_with_too_many_uploads_is_refused() -> None:
    uploads, done, begun = Uploads(SIZE), asyncio.Event(), asyncio.Semaphore(0)

    async def hold() -> None:
        async with uploads.read(request(SIZE), "acme"):
            begun.release()
            await done.wait()

    async with asyncio.TaskGroup() as group:
        for _ in range(BODIES_OF_TENANT):
            group.create_task(hold())
        for _ in range(BODIES_OF_TENANT):
            await begun.acquire()
        with pytest.raises(Refused) as refused:
            async with uploads.read(request(1), "acme"):
                pass
        async with uploads.read(request(SIZE), "other") as raw:
            assert len(raw) == SIZE
        done.set()
    assert (refused.value.status, refused.value.code) == (429, "too_many_uploads")
    assert "retry-after" in refused.value.headers
    async with uploads.read(request(SIZE), "acme") as raw:
        assert len(raw) == SIZE


def test_the_default_body_limit_grows_with_the_context() -> None:
    assert body_limit(8192) == (256 + 128) * 1024
    assert body_limit(131072) == (256 + 2048) * 1024


LARGE = INLINE_BYTES + 1


class Gate:
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


async def test_small_work_runs_on_the_event_loop_and_large_work_in_a_thread() -> None:
    turns = LargeWork()
    assert await turns.run("acme", INLINE_BYTES, threading.get_ident) == threading.get_ident()
    assert await turns.run("acme", LARGE, threading.get_ident) != threading.get_ident()


@pytest.mark.skipif(sys.platform != "linux", reason="priorities of threads are Linux's")
async def test_only_work_that_gives_way_has_a_lower_priority() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    work = LargeWork()
    assert await work.run("acme", LARGE, niceness) == min(19, niceness() + NICENESS)
    assert await work.run("acme", LARGE, niceness, gives_way=False) == niceness()


async def test_each_tenant_runs_one_piece_of_large_work_at_a_time() -> None:
    turns, first, second, other = LargeWork(), Gate(), Gate(), Gate()
    work = [asyncio.create_task(turns.run("acme", LARGE, gate)) for gate in (first, second)]
    await first.began.wait()
    away = asyncio.create_task(turns.run("other", LARGE, other))
    await other.began.wait()
    assert not second.began.is_set()
    for gate in (other, first, second):
        gate.open()
    await asyncio.gather(*work, away)


async def test_a_tenant_waits_longer_after_longer_work() -> None:
    turns, ends, starts = LargeWork(), list[float](), list[float]()

    def busy() -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.02:
            pass
        ends.append(time.monotonic())

    await turns.run("acme", LARGE, busy)
    await turns.run("other", LARGE, lambda: None)
    await turns.run("acme", LARGE, lambda: starts.append(time.monotonic()))
    assert starts[0] - ends[0] >= PAID_BACK * 0.02


async def test_failed_work_lets_the_next_run() -> None:
    turns = LargeWork()

    def fail() -> None:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await turns.run("acme", LARGE, fail)


async def test_cancelled_work_is_skipped() -> None:
    turns, first = LargeWork(), Gate()
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


async def test_running_work_keeps_the_turn_when_its_client_leaves() -> None:
    turns, first, second = LargeWork(), Gate(), Gate()
    leaves = asyncio.create_task(turns.run("acme", LARGE, first))
    await first.began.wait()
    stays = asyncio.create_task(turns.run("acme", LARGE, second))
    leaves.cancel()
    for _ in range(3):
        await turns.run("other", LARGE, lambda: None)
    assert leaves.cancelled()
    assert not second.began.is_set()
    first.open()
    second.open()
    await stays


def test_each_period_has_one_time_slice() -> None:
    clock = Clock()
    one = TimeSlice(clock, worked=clock)
    for _ in range(3):
        assert not one.is_over()
        clock.now += SLICE_S / 2
        assert not one.is_over()
        clock.now += SLICE_S
        assert one.is_over()
        clock.now += PERIOD_S


def test_nothing_waits_for_a_loop_that_was_idle() -> None:
    clock, worked = Clock(), Clock()
    one = TimeSlice(clock, worked)
    for _ in range(6):
        assert not one.is_over()
        clock.now += 0.3 * PERIOD_S
        worked.now += 0.2 * SLICE_S


@virtual_time
async def test_connections_read_in_slices_host_after_host() -> None:
    clock = Clock()
    reading, seen = Reading(TimeSlice(clock, worked=clock)), list[str]()

    def read(host: str) -> None:
        if reading.has_to_wait():
            reading.later(host, lambda: read(host))
        else:
            seen.append(host)
            clock.now += 0.6 * SLICE_S

    for _ in range(50):
        read("flood")
    read("other")
    assert seen == ["flood", "flood"]
    numbers = []
    while len(seen) < 51:
        clock.now += PERIOD_S
        before = len(seen)
        await asyncio.sleep(PERIOD_S)
        numbers.append(len(seen) - before)
        read("late") if len(seen) == 4 else None
    assert max(numbers) == 2
    assert seen.index("other") == 3
    assert seen.index("late") <= 6, "it waits behind no more than one of each host"


async def test_one_request_continues_per_round() -> None:
    starts, seen = RoundRobin(), list[int]()

    async def begin(number: int) -> None:
        await starts.turn("acme")
        seen.append(number)

    tasks = [asyncio.create_task(begin(i)) for i in range(10)]
    sizes = list[int]()
    while len(seen) < 10:
        await asyncio.sleep(0)
        sizes.append(len(seen))
    assert max(after - before for before, after in zip([0, *sizes], sizes, strict=False)) == 1
    assert seen == list(range(10))
    await asyncio.gather(*tasks)


async def test_a_flood_from_one_client_delays_another_client_by_one_request() -> None:
    starts, seen = RoundRobin(), list[str]()

    async def begin(client: str) -> None:
        await starts.turn(client)
        seen.append(client)

    flood = [asyncio.create_task(begin("flood")) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.create_task(begin("other"))
    await asyncio.gather(*flood, other)
    assert seen.index("other") <= 2


async def test_a_cancelled_request_is_skipped() -> None:
    starts = RoundRobin()
    leaves = [asyncio.create_task(starts.turn("acme")) for _ in range(3)]
    await asyncio.sleep(0)
    stays = asyncio.create_task(starts.turn("acme"))
    for task in leaves:
        task.cancel()
    await asyncio.wait_for(stays, 10)
    await asyncio.gather(*leaves, return_exceptions=True)
    await asyncio.wait_for(starts.turn("other"), 10)
