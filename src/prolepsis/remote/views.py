"""Health, counts and memory of several engines, combined as if they were one."""

from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

from prolepsis.core.engine_client import EngineHealth
from prolepsis.core.stats import ProposerMemory, TenantCounts, TrafficClassCounts


def summed_health(parts: Sequence[EngineHealth], *, alive: bool, absences: Sequence[str] = ()) -> EngineHealth:
    """Return the health of engines seen as one, which is `alive`; `absences` say why others are not there."""
    return EngineHealth(
        alive=alive,
        ready=any(health.ready for health in parts),
        detail="; ".join(filter(None, [*(health.detail for health in parts), *absences])),
        num_running=sum(health.num_running for health in parts),
        num_waiting=sum(health.num_waiting for health in parts),
        kv_usage=sum(health.kv_usage for health in parts) / len(parts) if parts else 0.0,
        max_running=sum(health.max_running for health in parts),
        not_begun=tuple(name for health in parts for name in health.not_begun),
        reading=tuple(progress for health in parts for progress in health.reading),
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
    total: dict[str, ProposerMemory] = {}
    for part in parts:
        for memory in part:
            before = total.get(memory.proposer, ProposerMemory(memory.proposer))
            sums = {part: getattr(before, part) + getattr(memory, part) for part in ("weights", "kv", "index", "lent")}
            total[memory.proposer] = ProposerMemory(memory.proposer, **sums)
    return list(total.values())


_KEYS = ("proposer", "traffic_class", "tenants")
_WORST = ("errors_in_row", "late_in_row", "is_lost")
_SUMMED = tuple(field.name for field in fields(TrafficClassCounts) if field.name not in (*_KEYS, *_WORST))


def _added(counts: TrafficClassCounts, other: TrafficClassCounts) -> TrafficClassCounts:
    tenants: dict[str, TenantCounts] = {}
    for part in counts.tenants + other.tenants:
        tenants[part.tenant] = tenants.get(part.tenant, TenantCounts(part.tenant)) + part
    sums: dict[str, Any] = {name: getattr(counts, name) + getattr(other, name) for name in _SUMMED}
    worst: dict[str, Any] = {name: max(getattr(counts, name), getattr(other, name)) for name in _WORST}
    return replace(counts, **sums, **worst, tenants=tuple(tenants.values()))
