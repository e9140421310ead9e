"""Traffic classes: how each fares, and why its steps are plain."""

from collections.abc import Mapping, Sequence

from prolepsis.audit.changes import ChangesReply
from prolepsis.console.admin import Section
from prolepsis.console.changes import marks, recent_changes
from prolepsis.console.drawing import Chart, Line, path_of
from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.console.timeline import Span
from prolepsis.console.traffic import TrafficClassReply, TrafficReply
from prolepsis.policy.eligibility_runtime import EligibilityReply
from prolepsis.safety.breaker_runtime import BreakersReply
from prolepsis.web.errors import RequestRefused

WHY: Mapping[str, str] = {
    "no_draft": "no proposer had a draft",
    "not_worth_it": "verifying the draft would not have paid",
    "too_costly": "asking proposers would not have paid",
    "backoff": "the proposers back off after failures",
    "breaker_open": "breakers disable the proposers of this class",
    "killed": "the kill switch stops it",
    "shadow_budget": "the time for drafts in shadow is spent",
    "no_capacity": "there was no room for a draft token",
    "requested_off": "the caller turned it off",
    "policy_off": "the policy's rule says off, or did not draw the request",
    "not_eligible": "its drafts have not shown what the rule asks for",
    "flag_off": "a feature flag turned it off",
    "plan_off": "the plan's ceiling is 0",
    "rolled_back": "its rollout was taken back",
    "no_decode": "it ended before a step that could have drafted",
    "overload_shallow": "drafts were shorter, as the queue aged",
    "overload_plain": "the queue aged",
    "overload_batch_waits": "the queue aged, and batch work waits",
    "overload_low_refused": "the queue aged, and low tiers are refused",
    "response_cache": "the answer is a stored one",
    "replay": "it is a replay",
    "speculating": "drafts were verified",
    "compared": "drafts were compared with the plain answer",
    "not_reported": "the upstream engine does not say what its drafts brought",
    "plain_only": "upstream engines cannot draft as it asks",
    "pool_down": "its upstream engines were gone, and the others served it",
}
"""Reasons in words, for requests and for steps."""


def declare_traffic(pages: Pages) -> None:
    async def classes(visit: Visit) -> Page:
        traffic = await visit.read(TrafficReply, "/admin/traffic")
        sparks = {one.traffic_class: path_of(acceptance(one.minutes), 0.0, 1.0) for one in traffic.classes}
        return Page("traffic.html", "Traffic classes", {"classes": traffic.classes, "sparks": sparks})

    async def one_class(visit: Visit) -> Page:
        name = visit.names["name"]
        traffic = await visit.read(TrafficReply, "/admin/traffic")
        found = next((one for one in traffic.classes if one.traffic_class == name), None)
        if found is None:
            message = f"There is no traffic of the class {name[:128]!r} since the server started."
            raise RequestRefused(message, code="unknown_traffic_class", status=404)
        eligibility = await visit.section(EligibilityReply, "/admin/eligibility")
        breakers = await visit.section(BreakersReply, "/admin/breakers")
        changes = await recent_changes(visit)
        values = {
            "one": found,
            "charts": charts(found.minutes[:-1], changes),
            "changes": changes,
            "why": WHY,
            "figures": [f for f in eligibility.value.figures if f.traffic_class == name] if eligibility.value else [],
            "conditions": [c for c in eligibility.value.conditions if c.traffic_class == name]
            if eligibility.value
            else [],
            "breakers": [b for b in breakers.value.breakers if b.traffic_class == name] if breakers.value else [],
            "positions": positions(found),
        }
        return Page("traffic_class.html", name, values)

    pages.get("/console/traffic", "Traffic classes", classes)
    pages.get("/console/traffic/{name:path}", "One traffic class", one_class)


def acceptance(minutes: Sequence[Span]) -> list[float | None]:
    return [span.acceptance_rate for span in minutes]


def charts(minutes: Sequence[Span], changes: Section[ChangesReply]) -> list[Chart]:
    at = [span.at for span in minutes]

    def percent(values: Sequence[float | None]) -> list[float | None]:
        return [None if value is None else 100.0 * value for value in values]

    return [
        Chart(
            title="Acceptance",
            unit="% of drafted tokens",
            at=at,
            lines=[Line("accepted", percent(acceptance(minutes)))],
            top=100.0,
            marks=marks(changes, at),
        ),
        Chart(
            title="Device time saved",
            unit="% against predicted plain decoding",
            at=at,
            lines=[Line("saved", percent([span.saved for span in minutes]))],
            top=50.0,
        ),
    ]


def positions(one: TrafficClassReply) -> list[tuple[int, dict[str, float | None]]]:
    """Return by draft position the share that was accepted, by proposer."""
    longest = max((len(proposer.per_position) for proposer in one.proposers.values()), default=0)
    return [
        (
            place + 1,
            {
                name: proposer.per_position[place][1] / proposer.per_position[place][0]
                if place < len(proposer.per_position) and proposer.per_position[place][0]
                else None
                for name, proposer in one.proposers.items()
            },
        )
        for place in range(longest)
    ]
