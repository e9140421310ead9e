"""Recent changes, with links to their entries and to the things they changed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from urllib.parse import quote

from prolepsis.control.audit.changes import ChangesReply
from prolepsis.control.audit.entry import SERVED, AuditEntry
from prolepsis.control.audit.routes import AuditReply
from prolepsis.control.drafts.heads import HeadsReply
from prolepsis.control.policy.routes import PolicyReply
from prolepsis.control.web.admin_routes import Section
from prolepsis.control.web.drawing import Mark
from prolepsis.control.web.page import Visit
from prolepsis.core.config import HEAD_PROPOSERS
from prolepsis.core.kill_scope import EVERYTHING, kill_scope

SWAPPED = "head.swapped"
_PAGES = {
    "head": "/console/proposers#heads",
    "flags": "/console/flags",
    "kill": "/console/kill",
    "breaker": "/console/proposers#breakers",
    "drift": "/console/quality#drift",
    "replay": "/console/quality",
    "server": "/console",
}
"""The page that shows what an action changes, by the area of the action."""


@dataclass(frozen=True, slots=True)
class Undo:
    """The form that undoes a change."""

    act: str
    button: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """Whether a change is still in effect, and what can be done about it."""

    in_effect: bool
    now: str  # the value in effect, as text
    undo: Undo | None = None
    scope: str = EVERYTHING  # scope of the kill switch with which speculation can be stopped instead


async def recent_changes(visit: Visit) -> Section[ChangesReply]:
    """Return the changes of the last day; hidden from callers without the role auditor."""
    audit = await visit.section(AuditReply, "/admin/audit", {"last": 1, "changes": True})
    return Section(audit.value.changes if audit.value else None, audit.problem, audit.hidden)


def marks(changes: Section[ChangesReply], at: Sequence[float]) -> list[Mark]:
    """Return the changes since a chart's beginning, the oldest first."""
    known = changes.value.changes[::-1] if changes.value else []
    times = [(datetime.fromisoformat(act.at).timestamp(), act) for act in known]
    return [
        Mark(when, act.action, f"{act.subject} {act.what}".strip().replace("->", "→"), f"/console/audit/{act.seq}")
        for when, act in times
        if at and at[0] <= when
    ]


def last_swaps(changes: Section[ChangesReply]) -> Mapping[str, int]:
    """Return, by slot, the number of the entry that put its head in, if that was recent."""
    known = changes.value.changes if changes.value else []
    return {change.subject: change.seq for change in reversed(known) if change.action == SWAPPED}


def page_of(entry: AuditEntry) -> str:
    """Return the page of the subject of an entry; empty if there is none."""
    area, subject = entry.action.partition(".")[0], entry.details.subject if entry.details else ""
    if entry.action == SERVED and subject:
        return f"/console/requests/{quote(subject, safe='@')}"
    if area == "rollout" and subject:
        return f"/console/rollouts/{quote(subject, safe='@')}"
    if area == "policy":
        version = subject.removeprefix("version ")
        return f"/console/policy/versions/{version}" if version.isdecimal() else "/console/policy"
    return _PAGES.get(area, "")


async def standing(visit: Visit, entry: AuditEntry) -> Standing | None:
    """Return how a change of a head or of the policy stands now; None for other entries."""
    details = entry.details
    before = details.before if details is not None and isinstance(details.before, dict) else {}
    after = details.after if details is not None and isinstance(details.after, dict) else {}
    if details is not None and entry.action == SWAPPED:
        return await _of_head(visit, details.subject, before.get("head"), after.get("head"))
    if entry.action in ("policy.applied", "policy.rolled_back") and isinstance(after.get("version"), int):
        return await _of_policy(visit, before.get("version"), after["version"])
    return None


async def _of_head(visit: Visit, slot: str, before: str | None, after: str | None) -> Standing | None:
    heads = await visit.section(HeadsReply, "/admin/heads")
    if heads.value is None or slot not in HEAD_PROPOSERS:
        return None
    current: str | None = getattr(heads.value, slot)
    now, scope = f"{slot} drafts with {current or 'no head'}", kill_scope("proposer", slot)
    if current != after or before == after:
        return Standing(current == after, now, scope=scope)
    button = f"Put {before} back" if before else "Take it out again"
    fields = {"proposer": slot, "head": before or "none"}
    undo = Undo("head", button, fields) if visit.may("PUT", "/admin/heads") else None
    return Standing(True, now, undo, scope)


async def _of_policy(visit: Visit, before: object, after: int) -> Standing | None:
    policy = await visit.section(PolicyReply, "/admin/policy")
    if policy.value is None:
        return None
    in_use = policy.value.version
    now = f"version {in_use} is in use"
    if in_use != after or not isinstance(before, int) or not visit.may("POST", "/admin/policy/rollback"):
        return Standing(in_use == after, now)
    fields = {"to": str(before), "expect": str(in_use)}
    return Standing(True, now, Undo("policy-rollback", f"Use version {before} again", fields))
