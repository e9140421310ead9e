"""Templates, and how they show values: counts, shares, times and amounts, each with its unit."""

import math
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from prolepsis import __version__
from prolepsis.core import units
from prolepsis.core.terminal import documents
from prolepsis.core.terminal.resource import Resource

UNKNOWN = "–"  # in place of a value that is not known
THIN = "\u202f"  # the space between a number and its unit


def environment() -> Environment:
    """Return the console's templates, and those of features by their path in the package.

    What they insert is escaped, and a missing value is an error.
    """
    made = Environment(
        loader=ChoiceLoader([PackageLoader("prolepsis.ops.console"), PackageLoader("prolepsis", "")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    shown = (count, share, seconds, age, moment, size, amount, number, plain, words, path, in_words, code)
    made.filters |= {function.__name__: function for function in (*shown, *_OF_DOCUMENTS)}
    made.filters["shown"] = lambda value, name: documents.shown(name, value)
    made.globals["status_kinds"] = _KINDS
    return made


_KINDS = {
    word: kind
    for kind, words in {
        "ok": "on running ready closed steady match signed",
        "warn": "draining drifted half_open held near_tie",
        "bad": "lost open forced_open cliff structural rolled_back",
        "off": "off failed",
        "info": "starting gate forced_closed metrics_only learning shadow",
    }.items()
    for word in words.split()
}
"""How a word for a state is marked."""


def read_document(document: Mapping[str, Any], resource: Resource) -> documents.ReadReply:
    """Return the facts and tables of a resource."""
    read = documents.ReadReply(resource.columns)
    read.collect({name: value for name, value in document.items() if name not in documents.WARNINGS})
    return read


def filled(address: str, row: Mapping[str, Any]) -> str:
    """Return the address of a page with the fields of a row."""
    link = address.format_map({name: quote(str(value), safe="@:/") for name, value in row.items()})
    return link if link.startswith(("/", "http://", "https://")) else ""


_OF_DOCUMENTS = (
    documents.cell,
    documents.header,
    documents.is_time,
    documents.title_of,
    documents.warnings_of,
    *(read_document, filled),
)


def page_alone(template: str, **values: object) -> str:
    """Return a page that needs nothing but itself: a template that extends `alone.html`."""
    style = Markup((files(__package__) / "static" / "console.css").read_text())  # noqa: S704  # ours
    return environment().get_template(template).render(style=style, version=__version__, **values)


def count(value: float | None) -> str:
    """Return a whole number with groups of three."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", THIN)


def number(value: float | None, digits: int = 2) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}".replace(",", THIN)


def share(value: float | None, digits: int = 1) -> str:
    """Return a share of 1 in percent."""
    return UNKNOWN if value is None else f"{100 * value:.{digits}f}{THIN}%"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None:
        return UNKNOWN
    return units.duration(value).replace(" ", THIN) if abs(value) >= 1e-6 else f"0{THIN}ms"


def age(at: float | str | None) -> str:
    """Return how long ago a time was, given as Unix time or as ISO text."""
    if at is None:
        return UNKNOWN
    began = datetime.fromisoformat(at).timestamp() if isinstance(at, str) else at
    value, unit = units.in_unit_of_time(max(0.0, round(time.time() - began)))
    return f"{value:.0f}{THIN}{unit} ago"


def moment(at: float | str | None) -> str:
    """Return a time, given as Unix time or as ISO text, as HTML in UTC, to the second, that breaks after the date."""
    if at is None:
        return UNKNOWN
    read = datetime.fromisoformat(at) if isinstance(at, str) else datetime.fromtimestamp(at, UTC)
    day, time_of_day = f"{read.astimezone(UTC):%Y-%m-%d %H:%M:%S}".split(" ")
    return Markup("<time><span>{}</span> <span>{} UTC</span></time>").format(day, time_of_day)


def size(value: float | None) -> str:
    """Return a number of bytes."""
    return UNKNOWN if value is None else units.size(value).replace(" ", THIN)


def amount(value: float | None, currency: str | None) -> str:
    """Return an amount of money: to three digits that count, below a cent to two, and to cents at least."""
    if value is None:
        return UNKNOWN
    counting = 3 if abs(value) >= 0.01 else 2
    digits = max(2, counting - 1 - math.floor(math.log10(abs(value)))) if value else 2
    return f"{number(value, min(digits, 9))}{THIN}{currency or ''}".strip()


def plain(value: object) -> str:
    """Return a value of a policy or of an audit entry as text on one line; what is not given is left out."""
    if value is None or value == "":
        return UNKNOWN
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(name))} {plain(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return ("; " if any(isinstance(part, Mapping) for part in value) else ", ").join(map(plain, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(name: str) -> str:
    """Return a name such as no_draft as people read it."""
    return name.replace("_", " ")


def path(name: str) -> str:
    """Return a name such as a traffic class as HTML that may break after each slash."""
    return Markup('<span class="path">{}</span>').format(Markup("/<wbr>").join(name.split("/")))


_CLASS = re.compile(r"(?<![\w:/-])([a-z-]+)/([a-z-]+)/(free|structured)/(short|medium|long)(?:/([\w.-]*\w))?")


def in_words(text: str) -> str:
    """Return a text with its traffic classes as people read them."""
    of = r"\1, \2, \3, \4"
    return _CLASS.sub(lambda found: found.expand(rf"rule \5 ({of})" if found[5] else of), text)


def code(text: str) -> str:
    """Return a text as HTML, its parts between backticks as code."""
    parts = (Markup("<code>{}</code>").format(part) if i % 2 else part for i, part in enumerate(text.split("`")))
    return Markup("").join(parts)
