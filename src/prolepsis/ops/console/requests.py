"""Requests: the last ones, and one of them with its rounds, its time by stage, its cost and its audit entries."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from prolepsis.control.audit.entry import SERVED, AuditEntry
from prolepsis.control.cost.prices import PriceInUse
from prolepsis.control.cost.runtime import CostReport
from prolepsis.control.traffic.recent import MAX_RECENT, KnownRequest, RecentReply, RecentRequest
from prolepsis.control.web.page import FeaturePages, GoTo, Page, PageRoute, Visit
from prolepsis.core.reasons import IN_WORDS, PlainReason
from prolepsis.core.rounds import Round
from prolepsis.core.stages import Stage

STAGES: Mapping[Stage, str] = {
    "receive": "reading the request",
    "queue": "waiting in the queue",
    "prefill": "its prompt",
    "decode": "its decoding",
    "others": "waiting for the work of others",
    "client": "client not reading",
    "server": "completing the answer",
}
"""In words."""
PARTS = {
    "queue_s": "waiting in the queue",
    "device_prefill_s": "prompt",
    "device_plain_s": "decoding",
    "device_verify_s": "verifying drafts",
    "device_propose_s": "making drafts",
    "device_host_s": "scheduling",
}
"""Columns of a record with parts of its time, in words: what a store keeps."""
LISTS = {
    "order=newest": "Newest",
    "order=slowest": "Slowest",
    "order=least_accepted": "Least accepted",
    "only=mismatched": "Mismatched",
    "only=violated": "Ended by an output policy",
}
"""In words, by query."""
MAX_DRAWN = 128


@dataclass(frozen=True, slots=True)
class ShownRequest:
    """One prompt of a request, as its page shows it."""

    record: Mapping[str, object]
    stages: Sequence[tuple[str, float, float, float]]
    """Name, seconds, where its part of a bar of 100 begins, and how wide it is."""
    stages_s: float | None
    """Their sum: from its arrival until its answer was complete. None: what the store keeps is not all of it."""
    device_s: float | None
    amount: float | None
    rounds: Sequence[Round]
    plain_steps: Mapping[PlainReason, int]
    recent: RecentRequest | None


async def _recent(visit: Visit) -> Page | GoTo:
    if visit.query.get("name"):
        return GoTo(f"/console/requests/{quote(visit.query['name'].strip(), safe='')}")
    asked = next((query for query in map("=".join, visit.query.items()) if query in LISTS), "order=newest")
    recent = await visit.section(RecentReply, "/admin/requests", dict([asked.split("=")]))
    return Page("requests.html", "Requests", {"recent": recent, "lists": LISTS, "asked": asked})


async def _request(visit: Visit) -> Page:
    name = visit.names["name"]
    reply = await visit.read(KnownRequest, "/admin/requests/{name}", name=name)
    sections = [
        await visit.section(AuditEntry, "/admin/audit/{entry}", entry=str(number)) for number in reply.audit_entries[:8]
    ]
    entries = [section.value for section in sections if section.value is not None and section.value.action == SERVED]
    cost = await visit.section(CostReport, "/admin/cost")
    price = cost.value.price if cost.value else None
    known = {request.record["request_id"]: request for request in reply.requests}
    records = reply.records or [request.record for request in known.values()]
    values = {
        "name": name,
        "shown": [shown(record, known.get(record["request_id"]), entries, price) for record in records],
        "entries": reply.audit_entries,
        "price": price,
        "why": IN_WORDS,
        "most_recent": MAX_RECENT,
    }
    return Page("request.html", "Request", values, live=False)


def shown(
    record: Mapping[str, object], recent: RecentRequest | None, entries: Sequence[AuditEntry], price: PriceInUse | None
) -> ShownRequest:
    """Return a record with what was kept of its rounds, in memory or in the audit log."""
    recorded = {name: value for name in PARTS if isinstance(value := record.get(name), float)}
    device = [value for name, value in recorded.items() if name != "queue_s"]
    named = (
        {STAGES[stage]: seconds for stage, seconds in recent.stages.by_stage().items()}
        if recent
        else {PARTS[name]: seconds for name, seconds in recorded.items()}
    )
    parts = {name: seconds for name, seconds in named.items() if seconds > 0.0}
    device_s = sum(device) if device else None
    amount = device_s * price.per_hour / 3600.0 if device_s is not None and price else None
    rounds = recent.rounds if recent else []
    entry = next((row for row in entries if row.details and row.details.subject == record["request_id"]), None)
    if not rounds and entry is not None:
        rounds = list(audited_rounds(entry))
    plain_steps: Mapping[PlainReason, int] = recent.plain_steps if recent else {}
    total_s = recent.stages.total if recent else None
    rounds, stages = rounds[:MAX_DRAWN], list(_placed(parts))
    return ShownRequest(record, stages, total_s, device_s, amount, rounds, plain_steps, recent)


def _placed(parts: Mapping[str, float]) -> Iterator[tuple[str, float, float, float]]:
    total, left = sum(parts.values()), 0.0
    for name, seconds in parts.items():
        width = 100.0 * seconds / total
        yield name, seconds, round(left, 2), round(width, 2)
        left += width


def audited_rounds(entry: AuditEntry) -> Iterator[Round]:
    """Yield the rounds of an audited request, whose times were not kept."""
    after = entry.details.after if entry.details else None
    rounds = after.get("rounds", []) if isinstance(after, dict) else []
    for sample, proposer, num_drafted, num_emitted, *_ in rounds:
        num_accepted = min(num_drafted, num_emitted - 1)
        counts = (num_drafted, num_drafted, num_accepted, num_accepted + 1)
        yield Round(0.0, 0.0, 0.0, 0.0, 0.0, sample, 0, proposer, "", *counts)


PAGES = FeaturePages(
    (
        PageRoute("/console/requests", "Requests", _recent, in_navigation=True),
        PageRoute("/console/requests/{name}", "One request", _request),
    )
)
