"""Proposers: what they draft with, their breakers and memory, and draft heads to swap in."""

from prolepsis.control.cost.runtime import CostReply
from prolepsis.control.drafts.heads import HeadsReply
from prolepsis.control.health.breaker_runtime import BreakersReply
from prolepsis.control.web.page import Act, FeaturePages, Page, PageRoute, Visit
from prolepsis.core.config import CANDIDATE_HEAD, DRAFT_HEAD
from prolepsis.core.engine_client import EngineClient
from prolepsis.ops.console.changes import last_swaps, recent_changes

STATES = {
    "closed": ("ok", "closed"),
    "open": ("bad", "open"),
    "half_open": ("warn", "half open: probed"),
    "forced_open": ("bad", "forced open"),
    "forced_closed": ("info", "forced closed"),
    "metrics_only": ("info", "metrics only"),
}
WHY = {
    "acceptance": "first tokens were accepted too rarely",
    "cost": "drafts cost more than they brought",
    "errors": "several calls in a row failed",
    "late": "several calls in a row took too long",
    "overdue": "a call did not come back in time",
    "shared": "it opened on another replica",
    "cliff": "acceptance fell to nearly nothing",
    "operator": "an operator set it",
}
"""Why a breaker is open, or in the state that it was set to."""
SETTABLE = {
    "closed": "decides by itself",
    "forced_open": "forced open: never drafts",
    "forced_closed": "forced closed: always drafts",
    "metrics_only": "metrics only: reports, disables nothing",
}


def proposer_pages(client: EngineClient) -> FeaturePages:
    async def proposers(visit: Visit) -> Page:
        cost, changes = await visit.section(CostReply, "/admin/cost"), await recent_changes(visit)
        values = {
            "changes": changes,
            "swaps": last_swaps(changes),
            "heads": await visit.section(HeadsReply, "/admin/heads"),
            "slots": (DRAFT_HEAD, CANDIDATE_HEAD),
            "breakers": await visit.section(BreakersReply, "/admin/breakers"),
            "memory": {one.proposer: one for one in cost.value.memory} if cost.value else {},
            "loaded": client.info.proposers,
            "states": STATES,
            "why_open": WHY,
            "settable": SETTABLE,
            "may_swap": visit.may("POST", "/admin/heads/swap"),
            "may_set": visit.may("PUT", "/admin/breakers"),
        }
        return Page("proposers.html", "Proposers", values)

    return FeaturePages(
        (PageRoute("/console/proposers", "Proposers", proposers, in_navigation=True),),
        {
            "head": Act("POST", "/admin/heads/swap", "{proposer} drafts with {head} now."),
            "breaker": Act("PUT", "/admin/breakers", "Breaker of {proposer} in {traffic_class}: {state}."),
        },
    )
