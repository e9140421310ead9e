"""Drift of proposers, and correctness: replays without speculation and their mismatches."""

from collections.abc import Mapping

from prolepsis.control.correctness.commands import CORRECTNESS
from prolepsis.control.health.commands import DRIFT
from prolepsis.control.web.page import Visit, listed
from prolepsis.ops.console.changes import recent_changes


async def _values(visit: Visit) -> tuple[str, Mapping[str, object]]:
    return "resources.html", {"changes": await recent_changes(visit)}


PAGES = listed("/console/quality", "Drift and correctness", DRIFT, CORRECTNESS, values=_values)
