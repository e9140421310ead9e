"""Proposers: what they draft with and bring, their breakers and memory, and draft heads to swap in."""

from collections.abc import Mapping

from prolepsis.control.cost.runtime import CostReport
from prolepsis.control.drafts.commands import HEADS
from prolepsis.control.health.commands import BREAKERS
from prolepsis.control.web.page import FeaturePages, Visit, listed
from prolepsis.core.config import HEAD_PROPOSERS
from prolepsis.core.engine_client import EngineClient
from prolepsis.ops.console.changes import last_swaps, recent_changes


def proposer_pages(client: EngineClient) -> FeaturePages:
    async def values(visit: Visit) -> tuple[str, Mapping[str, object]]:
        cost, changes = await visit.section(CostReport, "/admin/cost"), await recent_changes(visit)
        return "proposers.html", {
            "changes": changes,
            "swaps": last_swaps(changes),
            "slots": HEAD_PROPOSERS,
            "memory": {memory.proposer: memory for memory in cost.value.memory} if cost.value else {},
            "saved": {usage.value: usage.saved_s for usage in cost.value.by_proposer} if cost.value else {},
            "counts": client.proposer_counts(),
            "may_swap": visit.may("PUT", HEADS.path),
        }

    return listed("/console/proposers", "Proposers", HEADS, BREAKERS, values=values)
