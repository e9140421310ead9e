"""Runbooks in the console: alerts lead here, and their links to the page that shows more."""

from collections.abc import Mapping

from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.page import FeaturePages, Page, PageRoute, Visit
from prolepsis.ops.console.runbook import RUNBOOKS, Runbook


def runbook_pages(runbooks: Mapping[str, Runbook]) -> FeaturePages:
    async def listed(visit: Visit) -> Page:
        return Page("runbooks.html", "Runbooks", {"runbooks": runbooks.values()}, live=False)

    async def one(visit: Visit) -> Page:
        found = runbooks.get(visit.names["name"])
        if found is None:
            message = f"There is no runbook {visit.names['name'][:64]!r}; allowed: {', '.join(runbooks)}."
            raise RequestRefused(message, code="unknown_runbook", param="name", status=404)
        return Page("runbook.html", found.title, {"runbook": found}, live=False)

    return FeaturePages(
        (
            PageRoute(RUNBOOKS, "Runbooks", listed, in_navigation=True),
            PageRoute(f"{RUNBOOKS}/{{name}}", "One runbook", one),
        )
    )
