"""Pages of the kill switch and of feature flags: the state, who set it, and the forms that change it."""

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.controls.flag_file import ENABLED, KILL
from prolepsis.controls.flags_runtime import FlagsReply
from prolepsis.controls.kill_switch import KilledScope, KillStatus
from prolepsis.controls.operator_flags import plain_definition
from prolepsis.core.kill_scope import EVERYTHING


def declare_kill(pages: Pages) -> None:
    async def kill(visit: Visit) -> Page:
        status = await visit.section(KillStatus, "/admin/kill")
        flag = status.value.flag if status.value else None
        values = {
            "status": status,
            "stopped": _stopped(status.value) if status.value else [],
            "flag_on": flag is not None and flag.value,
            "scope": visit.query.get("scope", EVERYTHING),
        }
        return Page("kill.html", "Kill switch", values)

    pages.get("/console/kill", "Kill switch", kill)


def _stopped(status: KillStatus) -> list[tuple[str, KilledScope]]:
    """Return what operators stopped, with where that is kept: on this machine, and for all replicas."""
    return [
        *(("this machine's file", entry) for entry in status.operator),
        *(("store, for all replicas", entry) for entry in status.shared),
    ]


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
