"""Pages of the kill switch and of feature flags: the state, who set it, and the forms that change it."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.safety.flag_file import ENABLED, KILL
from prolepsis.safety.flag_routes import FlagsReply
from prolepsis.safety.kill_switch import KillStatus
from prolepsis.safety.shared_flags import plain_definition


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


def declare_flags(pages: Pages) -> None:
    async def flags(visit: Visit) -> Page:
        values = {
            "flags": await visit.section(FlagsReply, "/admin/flags"),
            "plain": {"on": plain_definition(value=True), "off": plain_definition(value=False)},
            "known": (ENABLED, KILL),
            "may_set": visit.may("PUT", "/admin/flags"),
        }
        return Page("flags.html", "Flags", values)

    pages.get("/console/flags", "Flags", flags)
