"""Feature flags that operators set for all replicas, and the forms that set and remove one."""

from prolepsis.console.pages import Page, Pages, Visit
from prolepsis.safety.flag_file import ENABLED, KILL
from prolepsis.safety.flag_routes import FlagsReply
from prolepsis.safety.shared_flags import plain_definition


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
