"""Pages of the kill switch and of feature flags: the state, who set it, and the forms that change it."""

from prolepsis.control.controls.flag_file import ENABLED, KILL
from prolepsis.control.controls.flags_runtime import FlagsReply
from prolepsis.control.controls.kill_switch import KilledScope, KillStatus
from prolepsis.control.controls.operator_flags import plain_definition
from prolepsis.control.web.page import Act, FeaturePages, Page, PageRoute, Visit
from prolepsis.core.kill_scope import EVERYTHING


async def _kill(visit: Visit) -> Page:
    status = await visit.section(KillStatus, "/admin/kill")
    flag = status.value.flag if status.value else None
    values = {
        "status": status,
        "stopped": _stopped(status.value) if status.value else [],
        "flag_on": flag is not None and flag.value,
        "scope": visit.query.get("scope", EVERYTHING),
    }
    return Page("control/controls/templates/kill.html", "Kill switch", values)


def _stopped(status: KillStatus) -> list[tuple[str, KilledScope]]:
    """Return what operators stopped, with where that is kept: on this machine, and for all replicas."""
    return [
        *(("this machine's file", entry) for entry in status.operator),
        *(("store, for all replicas", entry) for entry in status.shared),
    ]


async def _flags(visit: Visit) -> Page:
    values = {
        "flags": await visit.section(FlagsReply, "/admin/flags"),
        "plain": {"on": plain_definition(value=True), "off": plain_definition(value=False)},
        "known": (ENABLED, KILL),
        "may_set": visit.may("PUT", "/admin/flags"),
    }
    return Page("control/controls/templates/flags.html", "Flags", values)


PAGES = FeaturePages(
    routes=(
        PageRoute("/console/flags", "Flags", _flags, in_navigation=True),
        PageRoute("/console/kill", "Kill switch", _kill, in_navigation=True),
    ),
    acts={
        "kill": Act("PUT", "/admin/kill", "Kill switch for {scope}: {on_words}."),
        "flag": Act("PUT", "/admin/flags", "Flag {flag} is set."),
        "flag-remove": Act("POST", "/admin/flags/remove", "Flag {flag} is no longer set here."),
    },
)
