"""Health, counts and memory of several engines, combined as if they were one."""

from collections.abc import Iterable, Sequence

from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.stats import ProposerMemory, TenantCounts, TrafficClassCounts


def summed_health(found: Sequence[EngineHealth], *, alive: bool, absences: Sequence[str] = ()) -> EngineHealth:
    """Return the health of engines seen as one, which is `alive`; `absences` say why others are not there."""
    return EngineHealth(
        alive=alive,
        ready=any(health.ready for health in found),
        detail="; ".join(filter(None, [*(health.detail for health in found), *absences])),
        num_running=sum(health.num_running for health in found),
        num_waiting=sum(health.num_waiting for health in found),
        kv_usage=sum(health.kv_usage for health in found) / len(found) if found else 0.0,
        max_running=sum(health.max_running for health in found),
        not_begun=tuple(name for health in found for name in health.not_begun),
        reading=tuple(one for health in found for one in health.reading),
    )


def summed_counts(parts: Iterable[Sequence[TrafficClassCounts]]) -> list[TrafficClassCounts]:
    """Return the counts of each proposer and traffic class over all engines; of what is in a row, the worst."""
    total: dict[tuple[str, str], TrafficClassCounts] = {}
    for part in parts:
        for counts in part:
            key = counts.proposer, counts.traffic_class
            total[key] = _added(total[key], counts) if key in total else counts
    return list(total.values())


def summed_memory(parts: Iterable[Sequence[ProposerMemory]]) -> list[ProposerMemory]:
    """Return the memory of each proposer over all engines."""
    total: dict[str, ProposerMemory] = {}
    for part in parts:
        for memory in part:
            before = total.get(memory.proposer, ProposerMemory(memory.proposer))
            total[memory.proposer] = ProposerMemory(
                memory.proposer,
                before.weights + memory.weights,
                before.kv + memory.kv,
                before.index + memory.index,
            )
    return list(total.values())


def _added(one: TrafficClassCounts, other: TrafficClassCounts) -> TrafficClassCounts:
    return TrafficClassCounts(
        one.proposer,
        one.traffic_class,
        num_asked=one.num_asked + other.num_asked,
        num_judged=one.num_judged + other.num_judged,
        num_right=one.num_right + other.num_right,
        num_rounds=one.num_rounds + other.num_rounds,
        spent=one.spent + other.spent,
        gained=one.gained + other.gained,
        gained_squared=one.gained_squared + other.gained_squared,
        num_errors=one.num_errors + other.num_errors,
        errors_in_row=max(one.errors_in_row, other.errors_in_row),
        num_late=one.num_late + other.num_late,
        late_in_row=max(one.late_in_row, other.late_in_row),
        num_overdue=one.num_overdue + other.num_overdue,
        is_lost=one.is_lost or other.is_lost,
        tenants=_added_tenants(one.tenants + other.tenants),
    )


def _added_tenants(parts: Iterable[TenantCounts]) -> tuple[TenantCounts, ...]:
    total: dict[str, TenantCounts] = {}
    for part in parts:
        total[part.tenant] = total.get(part.tenant, TenantCounts(part.tenant)) + part
    return tuple(total.values())
