"""The audit log: its last entries, one entry, and a replay of the request that it recorded."""

import json
from collections.abc import Mapping
from urllib.parse import quote

from prolepsis.control.audit.changes import change_of
from prolepsis.control.audit.entry import RECORDING, AuditEntry
from prolepsis.control.audit.routes import AuditReply
from prolepsis.control.web.page import FeaturePages, GoTo, Page, PageRoute, Visit
from prolepsis.core.terminal.resource import Act
from prolepsis.ops.console.changes import page_of, standing

PAGE = 50
REPLAY = "/admin/audit/{entry}/replay"


async def _log(visit: Visit) -> Page | GoTo:
    if visit.query.get("entry"):
        return GoTo(f"/console/audit/{quote(visit.query['entry'].strip(), safe='')}")
    query: dict[str, object] = {"last": PAGE}
    query |= {name: visit.query[name] for name in ("action", "tenant", "after", "last") if visit.query.get(name)}
    reply = await visit.section(AuditReply, "/admin/audit", query)
    entries = reply.value.entries if reply.value else []
    values = {"audit": reply, "entries": entries[::-1], "query": visit.query, "earlier": _earlier(entries, query)}
    values["page_of"] = page_of
    return Page("audit.html", "Audit log", values, live="after" not in query)


def _earlier(entries: list[AuditEntry], query: Mapping[str, object]) -> str:
    """Return the query of the page with the entries before these; empty without any, and where filters are set."""
    if not entries or "action" in query or "tenant" in query or entries[0].seq <= 1:
        return ""
    after = max(0, entries[0].seq - PAGE - 1)
    return f"after={after}&last={entries[0].seq - 1 - after}"


async def _one(visit: Visit) -> Page:
    entry = await visit.read(AuditEntry, "/admin/audit/{entry}", entry=visit.names["entry"])
    details = entry.details
    after = details.after if details is not None and isinstance(details.after, dict) else {}
    values = {
        "entry": entry,
        "before": pretty(details.before) if details else "",
        "after": pretty(details.after) if details else "",
        "page": page_of(entry),
        "change": change_of(entry),
        "standing": await standing(visit, entry),
        "may_replay": RECORDING in after and visit.may("POST", REPLAY),
    }
    return Page("audit_entry.html", f"Audit entry {entry.seq}", values, live=False)


def pretty(value: object) -> str:
    """Return JSON for people; empty for no value."""
    return "" if value is None else json.dumps(value, indent=2, ensure_ascii=False)


PAGES = FeaturePages(
    routes=(
        PageRoute("/console/audit", "Audit", _log, in_navigation=True),
        PageRoute("/console/audit/{entry}", "One entry", _one),
    ),
    acts={"replay": Act(method="POST", path=REPLAY, done="Entry {entry} was decoded again: {reply.outcome}.")},
)
