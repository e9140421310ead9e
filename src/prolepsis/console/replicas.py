"""Replicas: the servers of the store, their exact groups, and the engines behind them."""

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.replicas.registry import ReplicasReply

STATES = {
    "starting": ("info", "starting"),
    "ready": ("ok", "ready"),
    "draining": ("warn", "draining"),
    "lost": ("bad", "not seen lately"),
}


def declare_replicas(pages: Pages) -> None:
    async def replicas(visit: Visit) -> Page:
        reply = await visit.section(ReplicasReply, "/admin/replicas")
        groups = {one.exact_group: one.group for one in reply.value.replicas} if reply.value else {}
        return Page("replicas.html", "Replicas", {"replicas": reply, "groups": groups, "states": STATES})

    pages.get("/console/replicas", "Replicas", replicas)
