"""The runbooks in the folder next to this module: each rendered, with the alerts that lead to it."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from prolepsis.core.terminal.admin import HERE

LOCAL_CONSOLE = f"{HERE}/console"
"""How the runbooks, read elsewhere, name the console of a server with default settings."""
RUNBOOKS = "/console/runbooks"
_ALERTS = re.compile(r"^Alerts: (.+?)\.$", re.M | re.S)
_MARKDOWN = MarkdownIt("commonmark", {"html": False})


@dataclass(frozen=True, slots=True)
class Runbook:
    """One page; its name is that of its file."""

    name: str
    title: str
    alerts: tuple[str, ...]
    content: Markup  # below the title

    @property
    def path(self) -> str:
        return f"{RUNBOOKS}/{self.name}"


@cache  # files of the package: they stay as they are
def runbooks() -> Mapping[str, Runbook]:
    folder = files(__package__) / "runbooks"
    pages = [file for file in folder.iterdir() if file.name.endswith(".md")]
    made = [_runbook(file.name.removesuffix(".md"), file.read_text(encoding="utf-8")) for file in pages]
    return {runbook.name: runbook for runbook in sorted(made, key=lambda runbook: runbook.name)}


def by_alert(pages: Mapping[str, Runbook]) -> Mapping[str, Runbook]:
    """Return the runbooks by the alerts that lead to them."""
    return {alert: page for page in pages.values() for alert in page.alerts}


def _runbook(name: str, text: str) -> Runbook:
    title, _, rest = text.partition("\n")
    named = _ALERTS.search(text)
    alerts = tuple(re.findall(r"`(\w+)`", named[1])) if named else ()
    return Runbook(name, title.removeprefix("# ").strip(), alerts, rendered(rest))


def rendered(text: str) -> Markup:
    """Return Markdown as HTML whose links lead to pages of this server, or name the file of the documentation."""
    tokens = _MARKDOWN.parse(text)
    for token in tokens:
        if token.children is not None:
            token.children = list(_linked(token.children))
    return Markup(_MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {}))  # noqa: S704  # raw HTML is escaped


def _linked(tokens: list[Token]) -> Iterator[Token]:
    elsewhere = ""
    for token in tokens:
        if token.type == "link_open":
            path = _address(str(token.attrs["href"]))
            elsewhere = "" if path else str(token.attrs["href"])
            token.attrs["href"] = path
        if token.type not in ("link_open", "link_close") or not elsewhere:
            yield token
        elif token.type == "link_close":
            yield Token("text", "", 0, content=f" ({elsewhere.replace('../', '')})")
            elsewhere = ""


def _address(href: str) -> str:
    """Return the address of a link here; empty for a page of the documentation that servers do not have."""
    if href.startswith(LOCAL_CONSOLE):
        return f"/console{href.removeprefix(LOCAL_CONSOLE)}"
    page, _, part = href.partition("#")
    if "/" not in page and page.endswith(".md"):
        return f"{RUNBOOKS}/{page.removesuffix('.md')}{f'#{part}' if part else ''}"
    return href if href.startswith("https://") else ""
