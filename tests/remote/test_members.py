"""Which engines there are, and what several of them say as one."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from prometheus_client import CollectorRegistry

from prolepsis.core.config import DRAFT_HEAD, HeadProposerName
from prolepsis.core.engine_client import EngineClient, EngineHealth, HeadSwapped, PromptProgress
from prolepsis.core.messages import LearnedAcceptance, SetCorpora
from prolepsis.core.plan import PANIC_PLAN, SpecPlan
from prolepsis.core.stats import AcceptanceState, ProposerMemory, TenantCounts, TrafficClassCounts
from prolepsis.remote.engines import RemoteControls
from prolepsis.remote.members import ContinuationMetrics, FailoverSettings, Member, Members
from prolepsis.remote.views import summed_counts, summed_health, summed_memory
from tests.remote.scripted_engines import HERE, Speaker
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


def members(member: Member, prepare: Callable[[EngineClient], Awaitable[None]] = nothing) -> Members:
    clock = asyncio.get_running_loop().time
    settings = FailoverSettings(max_restarts=3, backoff_s=1.0, steady_s=60.0)
    return Members([member], HERE, settings, ContinuationMetrics(CollectorRegistry()), prepare, clock=clock)


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
    assert (member.client, member.start) == (None, None)


@virtual_time
async def test_an_engine_that_others_start_is_looked_for_as_long_as_it_is_listed() -> None:
    starts = Starts(takes_s=0.0, failures=10_000)
    member = Member(Speaker(), starts, listed_as="there")
    clock = asyncio.get_running_loop().time
    settings = FailoverSettings(max_restarts=100_000)
    pool = Members([member], HERE, settings, ContinuationMetrics(CollectorRegistry()), nothing, clock=clock)
    lose(pool, member)
    await asyncio.sleep(20_000.0)
    assert len(starts.times) > 2000
    member.start = None
    await asyncio.sleep(10.0)
    assert pool.all == []
    assert "no room" in member.detail, "nothing else was tried"


@virtual_time
async def test_slow_starts_that_fail_are_counted_too() -> None:
    starts = Starts(takes_s=100.0, failures=9)
    member = Member(Speaker(), starts)
    lose(members(member), member)
    await asyncio.sleep(10_000.0)
    assert len(starts.times) == 3
    assert member.start is None


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
    assert member.start is None


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


async def test_a_new_engine_gets_the_corpora_and_what_was_learned_of_drafts() -> None:
    controls, engine = RemoteControls(), Speaker()
    for owner, texts in (("tenant:a", (b"old",)), ("tenant:a", (b"new",)), ("tenant:b", (b"text",)), ("tenant:b", ())):
        controls.note(SetCorpora(owner, texts))
    learned = LearnedAcceptance("suffix", "fp", AcceptanceState((0.5, 2.0), {}))
    controls.note(learned)
    await controls.bring_up_to_date(engine)
    assert engine.corpora == {"tenant:a": (b"new",)}
    assert engine.learned == [learned]


async def test_a_new_engine_gets_the_plan_stopped_runs_and_heads() -> None:
    controls, engine = RemoteControls(), Speaker()
    controls.plan = PANIC_PLAN
    controls.stopped |= {"run#1": None, "run#2": None}
    controls.swapped("mine@champion", "draft_head", HeadSwapped(None, "mine@4", 7))
    controls.swapped("none", "candidate_head", HeadSwapped("other@1", None, 8))
    controls.swapped("acme@champion", "learnt_head", HeadSwapped(None, "acme@2", 9))
    await controls.bring_up_to_date(engine)
    assert (engine.plans, engine.stopped) == ([PANIC_PLAN], ["run#1", "run#2"])
    assert engine.info.heads == {"draft_head": "mine@4", "learnt_head": "acme@2"}, "versions, not what aliases are now"
    assert engine.swaps == ["mine@4", "acme@2"], "nothing that it has already"


class ToldMeanwhile(Speaker):
    """Speculation is stopped while it loads a head."""

    def __init__(self, controls: RemoteControls) -> None:
        super().__init__()
        self._controls = controls

    async def swap_head(self, name: str, proposer: HeadProposerName = DRAFT_HEAD) -> HeadSwapped:
        self._controls.plan, self._controls.stopped = PANIC_PLAN, {"run#1": None}
        return await super().swap_head(name, proposer)


async def test_a_new_engine_gets_what_is_told_while_it_loads_its_heads() -> None:
    controls = RemoteControls()
    controls.plan = SpecPlan()
    controls.swapped("mine@4", "draft_head", HeadSwapped(None, "mine@4", 7))
    await controls.bring_up_to_date(engine := ToldMeanwhile(controls))
    assert (engine.plans[-1], engine.stopped) == (PANIC_PLAN, ["run#1"])


@virtual_time
async def test_an_engine_that_cannot_be_brought_up_to_date_is_closed() -> None:
    starts = Starts(takes_s=0.0, failures=0)
    engines: list[EngineClient] = []

    async def fail(client: EngineClient) -> None:
        engines.append(client)
        raise OSError("the folder of the head is gone")

    member = Member(Speaker(), starts)
    lose(members(member, fail), member)
    await asyncio.sleep(100.0)
    assert [one.closed for one in engines if isinstance(one, Speaker)] == [True] * 3


async def test_a_folder_is_remembered_as_such() -> None:
    controls, engine = RemoteControls(), Speaker()
    controls.swapped("./heads/mine", "draft_head", HeadSwapped(None, "mine@4", 7))
    await controls.bring_up_to_date(engine)
    assert engine.swaps == ["./heads/mine"]


async def test_a_head_that_is_gone_costs_no_engine() -> None:
    controls, engine = RemoteControls(), Speaker()
    controls.swapped("broken@1", "draft_head", HeadSwapped(None, "broken@1", 7))
    controls.swapped("good@1", "candidate_head", HeadSwapped(None, "good@1", 8))
    await controls.bring_up_to_date(engine)
    assert engine.swaps == ["good@1"]


async def test_a_new_engine_gets_nothing_without_changes() -> None:
    engine = Speaker()
    await RemoteControls().bring_up_to_date(engine)
    assert (engine.plans, engine.stopped, engine.swaps) == ([], [], [])


def test_health_of_several_engines() -> None:
    busy = EngineHealth(
        alive=True, ready=True, detail="", num_running=2, num_waiting=1, kv_usage=0.5, max_running=8, not_begun=("r",)
    )
    slow = EngineHealth(alive=True, ready=False, detail="a step has been running for 9 s", num_running=1, kv_usage=0.25)
    read = PromptProgress("r", 512, 0, 2048)
    found = summed_health([replace(busy, reading=(read,)), slow], alive=True)
    assert (found.alive, found.ready, found.num_running, found.num_waiting) == (True, True, 3, 1)
    assert (found.not_begun, found.reading) == (("r",), (read,))
    assert (found.kv_usage, found.detail) == (0.375, "a step has been running for 9 s")
    assert found.max_running == 8
    assert not summed_health([slow], alive=True).ready


def test_counts_add_up_by_proposer_and_class() -> None:
    one = TrafficClassCounts("suffix", "a", num_asked=3, gained=1.5, errors_in_row=2)
    other = TrafficClassCounts("suffix", "a", num_asked=4, gained=1.0, errors_in_row=1, is_lost=True)
    alone = TrafficClassCounts("suffix", "b", num_asked=5)
    [a, b] = summed_counts([[one, alone], [other]])
    assert a == TrafficClassCounts("suffix", "a", num_asked=7, gained=2.5, errors_in_row=2, is_lost=True)
    assert b == alone


def test_every_count_is_added_or_compared() -> None:
    names = [
        name for name in TrafficClassCounts.__dataclass_fields__ if name not in ("proposer", "traffic_class", "tenants")
    ]
    one = TrafficClassCounts("p", "c", **dict.fromkeys(names, 1))  # type: ignore[arg-type]
    [total] = summed_counts([[one], [one]])
    kept = {"errors_in_row", "late_in_row", "is_lost"}
    assert {name: getattr(total, name) for name in names} == {name: 1 if name in kept else 2 for name in names}


def test_the_counts_of_a_tenant_are_added() -> None:
    names = [name for name in TenantCounts.__dataclass_fields__ if name != "tenant"]
    counts = {name: i + 1 for i, name in enumerate(names)}
    parts = [TenantCounts(tenant, **counts) for tenant in ("bank", "shop")]
    one, other = (TrafficClassCounts("p", "c", tenants=tuple(some)) for some in (parts, parts[:1]))
    [total] = summed_counts([[one], [other]])
    assert total.tenants == (
        TenantCounts("bank", **{name: 2 * number for name, number in counts.items()}),
        parts[1],
    )


def test_memory_adds_up_by_proposer() -> None:
    head, index = ProposerMemory("head", weights=5, kv=2), ProposerMemory("suffix", index=3)
    lent = replace(head, lent=2)
    assert summed_memory([[head, index], [lent]]) == [ProposerMemory("head", weights=10, kv=4, lent=2), index]
