"""Drift of proposers, and correctness: replays without speculation and their mismatches."""

from collections.abc import Mapping

from prolepsis.control.correctness.runtime import CorrectnessReply
from prolepsis.control.health.drift_runtime import DriftReply
from prolepsis.control.web.page import Act, FeaturePages, Page, PageRoute, Visit
from prolepsis.ops.console.changes import recent_changes
from prolepsis.ops.console.runbook import Runbook

STATUS = {
    "learning": ("info", "learning"),
    "steady": ("ok", "steady"),
    "drifted": ("warn", "drifted"),
    "cliff": ("bad", "cliff"),
}
ALERTS = {"cliff": "AcceptanceCliff", "drifted": "AcceptanceDrift"}
"""By the status of a stream."""
OUTCOMES = {
    "match": ("ok", "same tokens as without speculation"),
    "near_tie": ("warn", "rounding decided between nearly tied tokens"),
    "structural": ("bad", "other tokens, and no rounding explains it"),
    "failed": ("off", "the replay failed, so nothing was compared"),
}


def quality_pages(runbooks: Mapping[str, Runbook]) -> FeaturePages:
    """`runbooks`: by alert."""

    async def quality(visit: Visit) -> Page:
        values = {
            "drift": await visit.section(DriftReply, "/admin/drift"),
            "correctness": await visit.section(CorrectnessReply, "/admin/correctness"),
            "changes": await recent_changes(visit),
            "status": STATUS,
            "alerts": ALERTS,
            "runbooks": runbooks,
            "outcomes": OUTCOMES,
            "may_reset": visit.may("POST", "/admin/drift/reset"),
            "may_find": visit.may("GET", "/admin/requests/{name}"),
        }
        return Page("quality.html", "Drift and correctness", values)

    return FeaturePages(
        (PageRoute("/console/quality", "Drift and correctness", quality, in_navigation=True),),
        {"drift": Act("POST", "/admin/drift/reset", "The stream of {proposer} in {traffic_class} starts again.")},
    )
