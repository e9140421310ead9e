"""Drift of proposers, and correctness: replays without speculation and their mismatches."""

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.correctness.runtime import CorrectnessReply
from prolepsis.safety.drift_runtime import DriftReply

STATUS = {
    "learning": ("info", "learning"),
    "steady": ("ok", "steady"),
    "drifted": ("warn", "drifted"),
    "cliff": ("bad", "cliff"),
}
OUTCOMES = {
    "match": ("ok", "same tokens as without speculation"),
    "near_tie": ("warn", "rounding decided between nearly tied tokens"),
    "structural": ("bad", "other tokens, and no rounding explains it"),
    "failed": ("off", "the replay failed, so nothing was compared"),
}


def declare_quality(pages: Pages) -> None:
    async def quality(visit: Visit) -> Page:
        values = {
            "drift": await visit.section(DriftReply, "/admin/drift"),
            "correctness": await visit.section(CorrectnessReply, "/admin/correctness"),
            "status": STATUS,
            "outcomes": OUTCOMES,
            "may_reset": visit.may("POST", "/admin/drift/reset"),
            "may_find": visit.may("GET", "/admin/requests/{name}"),
        }
        return Page("quality.html", "Drift and correctness", values)

    pages.get("/console/quality", "Drift and correctness", quality)
