"""The list of checks as docs/how-to/doctor.md has it, made of the table of the package."""

import re
from collections.abc import Sequence

from prolepsis.lab.doctor.checks import Check

_LINK = re.compile(r"docs/((?:[\w-]+/)*)([\w-]+)\.md(#[\w-]+)?")
_HEAD = "| check | level | looks at | what | why | how to mend it |\n|---|---|---|---|---|---|\n"


def table(checks: Sequence[Check]) -> str:
    """Return Markdown; addresses of pages become links from docs/how-to."""
    rows = ((f"`{one.id}`", one.level, one.looks_at, one.what, one.why, _linked(one.fix)) for one in checks)
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _linked(fix: str) -> str:
    def link(match: re.Match[str]) -> str:
        folder, page, part = match[1], match[2], match[3] or ""
        path = "" if folder == "how-to/" else f"../{folder}"
        target = part if (folder, page) == ("how-to/", "doctor") else f"{path}{page}.md{part}"
        return f"[{(part or page).strip('#').replace('-', ' ')}]({target})"

    return _LINK.sub(link, fix)
