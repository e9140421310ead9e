"""The kill switch: what is stopped, by whom, and the forms that stop and release a scope."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.safety.kill_switch import KillStatus


@dataclass(frozen=True, slots=True)
class StoppedScope:
    """One scope that is stopped, with where that is kept."""

    scope: str
    place: str
    by: str
    reason: str
    at: float


def declare_kill(pages: Pages) -> None:
    async def kill(visit: Visit) -> Page:
        status = await visit.section(KillStatus, "/admin/kill")
        entries = list(stopped(status.value)) if status.value else []
        flag = status.value.flag if status.value else None
        values = {
            "status": status,
            "entries": entries,
            "flag_on": flag is not None and flag.value,
            "scope": visit.query.get("scope", EVERYTHING),
        }
        return Page("kill.html", "Kill switch", values)

    pages.get("/console/kill", "Kill switch", kill)


def stopped(status: KillStatus) -> Iterator[StoppedScope]:
    """Yield what operators stopped: on this machine, and for all replicas."""
    operator = status.operator
    if operator.on:
        yield _entry(EVERYTHING, "this machine's file", operator.by, operator.reason, operator.at)
    for one in operator.scopes:
        yield _entry(one.scope, "this machine's file", one.by, one.reason, one.at)
    for one in status.shared:
        yield _entry(one.scope, "store, for all replicas", one.by, one.reason, one.at)


def _entry(scope: str, place: str, by: str, reason: str, at: datetime) -> StoppedScope:
    return StoppedScope(scope, place, by, reason, at.timestamp())
