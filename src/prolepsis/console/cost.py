"""Cost: the device time of requests, the savings of speculation, and the forecast for a month."""

from collections.abc import Sequence

from prolepsis.console.drawing import Interval, interval
from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.cost.comparison import ArmComparison
from prolepsis.cost.runtime import CostReply, UsageReply

KINDS = {
    "prefill": "prompts",
    "plain": "decoding",
    "verify": "verifying drafts",
    "propose": "making drafts",
    "host": "scheduling",
}
"""Kinds of device time, in words."""


def declare_cost(pages: Pages) -> None:
    async def cost(visit: Visit) -> Page:
        reply = await visit.read(CostReply, "/admin/cost")
        values = {
            "cost": reply,
            "kinds": KINDS,
            "parts": parts(reply.total),
            "tables": (
                *(("Route", reply.by_route), ("Tenant", reply.by_tenant)),
                *(("Rule", reply.by_rule), ("Proposer", reply.by_proposer)),
            ),
            "savings": {
                (one.rollout, group.by, group.value): saving(group) for one in reply.rollouts for group in one.groups
            },
        }
        return Page("cost.html", "Cost", values)

    pages.get("/console/cost", "Cost", cost)


def parts(usage: UsageReply) -> Sequence[tuple[str, float, float, float]]:
    """Return the kinds of device time: name, seconds, and where its part of a bar of 100 begins and how wide it is."""
    found, left = [], 0.0
    for kind, seconds in usage.device_s.items():
        width = 100.0 * seconds / usage.total_device_s if usage.total_device_s else 0.0
        found.append((KINDS[kind], seconds, round(left, 2), round(width, 2)))
        left += width
    return found


def saving(group: ArmComparison) -> Interval | None:
    """Return where a saving and its bounds are, None while they are not known."""
    one = group.saved
    if one.estimate is None or one.lower is None or one.upper is None:
        return None
    return interval(one.estimate, one.lower, one.upper, 0.0)
