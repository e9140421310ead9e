"""Starting lost engines again: how often, after which waits, and when no more."""

import asyncio

from prometheus_client import CollectorRegistry

from prolepsis.engine.client import EngineClient
from prolepsis.failover.members import Member, Members
from prolepsis.failover.metrics import FailoverMetrics
from prolepsis.failover.settings import FailoverSettings
from tests.failover.speaking import Speaker
from tests.virtual_time import virtual_time


async def nothing(client: EngineClient) -> None:
    """Bring an engine up to date."""


class Starts:
    """Starts engines that each take a while, some of which fail."""

    def __init__(self, *, takes_s: float, failures: int) -> None:
        self.times: list[float] = []
        self._takes_s, self._failures = takes_s, failures

    async def __call__(self) -> EngineClient:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self._takes_s)
        if len(self.times) <= self._failures:
            raise MemoryError("no room")
        return Speaker()


def members(member: Member) -> Members:
    clock = asyncio.get_running_loop().time
    settings = FailoverSettings(max_restarts=3, backoff_s=1.0, steady_s=60.0)
    return Members([member], settings, FailoverMetrics(CollectorRegistry()), nothing, clock=clock)


def lose(pool: Members, member: Member) -> None:
    assert member.client is not None
    pool.lose(member, member.client, "gone")
    assert member.client is None


@virtual_time
async def test_starts_wait_longer_each_time_and_end() -> None:
    starts = Starts(takes_s=0.0, failures=9)
    member = Member(Speaker(), starts)
    lose(members(member), member)
    await asyncio.sleep(1000.0)
    assert [round(time) for time in starts.times] == [0, 1, 3]
    assert (member.client, member.may_return) == (None, False)


@virtual_time
async def test_slow_starts_that_fail_are_counted_too() -> None:
    starts = Starts(takes_s=100.0, failures=9)
    member = Member(Speaker(), starts)
    lose(members(member), member)
    await asyncio.sleep(10_000.0)
    assert len(starts.times) == 3
    assert not member.may_return


@virtual_time
async def test_an_engine_that_served_for_long_may_be_started_as_often_again() -> None:
    starts = Starts(takes_s=0.0, failures=0)
    member = Member(Speaker(), starts)
    pool = members(member)
    for _ in range(5):
        lose(pool, member)
        await asyncio.sleep(61.0)
        assert member.client is not None
    for _ in range(3):
        lose(pool, member)
        await asyncio.sleep(10.0)
    assert member.client is not None, "the first of them came after a long time"
    lose(pool, member)
    await asyncio.sleep(10.0)
    assert member.client is None
    assert not member.may_return


@virtual_time
async def test_a_loss_counts_once() -> None:
    starts = Starts(takes_s=1.0, failures=0)
    member = Member(Speaker(), starts)
    pool = members(member)
    first = member.client
    assert first is not None
    for _ in range(3):
        pool.lose(member, first, "gone")
    await asyncio.sleep(5.0)
    pool.lose(member, first, "gone")
    await asyncio.sleep(5.0)
    assert len(starts.times) == 1
    assert isinstance(first, Speaker)
    assert first.closed
