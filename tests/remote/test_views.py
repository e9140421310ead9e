"""Several engines seen as one: loads and counts add up, of streaks the worst counts."""

from dataclasses import replace

from prolepsis.core.engine_client import EngineHealth, PromptProgress
from prolepsis.core.stats import ProposerMemory, TenantCounts, TrafficClassCounts
from prolepsis.remote.views import summed_counts, summed_health, summed_memory


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
    parts = [TenantCounts(tenant, num_asked=1, num_right=3, spent=5.0) for tenant in ("bank", "shop")]
    one, other = (TrafficClassCounts("p", "c", tenants=tuple(some)) for some in (parts, parts[:1]))
    [total] = summed_counts([[one], [other]])
    assert total.tenants == (TenantCounts("bank", num_asked=2, num_right=6, spent=10.0), parts[1])


def test_memory_adds_up_by_proposer() -> None:
    head, index = ProposerMemory("head", weights=5, kv=2), ProposerMemory("suffix", index=3)
    assert summed_memory([[head, index], [head]]) == [ProposerMemory("head", weights=10, kv=4), index]
