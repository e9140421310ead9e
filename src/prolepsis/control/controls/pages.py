"""Pages of the kill switch and of feature flags: the state, who set it, and the forms that change it."""

from collections.abc import Mapping

from prolepsis.control.controls.commands.flags import FLAGS
from prolepsis.control.controls.flag_file import ENABLED
from prolepsis.control.controls.flag_file import KILL as KILL_FLAG
from prolepsis.control.web.page import Visit, listed
from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.terminal.resource import REASON, Act, Resource

_COLUMNS = ("scope", "by", "reason", "at")
KILL = Resource(
    title="What is stopped",
    path="/admin/kill",
    help="The kill switch: what it stops, and by which sources.",
    columns={"operator": _COLUMNS, "shared": _COLUMNS},
    hint="Operator: on this machine, by its controls file; shared: in the store, for all replicas; a flag is turned off"
    " where it is kept. A stopped scope decodes plainly from its next step on; answers stay the same.",
    empty="Nothing is stopped.",
    acts={
        "kill": Act(
            method="PUT",
            path="/admin/kill",
            parameters=(REASON,),
            done="Kill switch for {scope}: {on_words}.",
            button="Release",
            row={"scope": "{scope}", "on": "false"},
        )
    },
)


async def _kill(visit: Visit) -> tuple[str, Mapping[str, object]]:
    return "control/controls/templates/kill.html", {"scope": visit.query.get("scope", EVERYTHING)}


async def _flags(visit: Visit) -> tuple[str, Mapping[str, object]]:
    values = {"known": (ENABLED, KILL_FLAG), "may_set": visit.may("PUT", "/admin/flags")}
    return "control/controls/templates/flags.html", values


PAGES = (
    listed("/console/flags", "Flags", FLAGS, values=_flags),
    listed("/console/kill", "Kill switch", KILL, values=_kill),
)
