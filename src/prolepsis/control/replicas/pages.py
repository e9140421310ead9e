"""Replicas: the servers of the store, their exact groups, and the engines behind them."""

from prolepsis.control.replicas.registry import ReplicasReply
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit

STATES = {
    "starting": ("info", "starting"),
    "ready": ("ok", "ready"),
    "draining": ("warn", "draining"),
    "lost": ("bad", "not seen lately"),
}


async def _replicas(visit: Visit) -> Page:
    reply = await visit.section(ReplicasReply, "/admin/replicas")
    groups = {one.exact_group: one.group for one in reply.value.replicas} if reply.value else {}
    return Page(
        "control/replicas/templates/replicas.html", "Replicas", {"replicas": reply, "groups": groups, "states": STATES}
    )


PAGES = FeaturePages((PageRoute("/console/replicas", "Replicas", _replicas, in_navigation=True),))
