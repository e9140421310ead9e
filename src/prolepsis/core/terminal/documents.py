"""Prints JSON documents: as they are for programs, as lines and tables for people."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prolepsis.core.terminal.output import print_facts, print_json, print_table, shown_time, warn
from prolepsis.core.units import duration, figure, size

Columns = Mapping[str, Sequence[str]]
"""The columns of tables, by the path of the list in the document: each a field, its path, or HEADER=PATH.

A list may have several tables, PATH and PATH:TITLE. Names of fields state units, as in *_s and *_bytes; FIELD:UNIT
states one. A > B is a column with another: on a page B stands small below A.
"""

FINDINGS = ("severity", "line", "where=path", "what=message")  # columns of what is wrong with a file
WARNINGS = ("fault", "not_saved", "warnings")
"""Fields of replies that say what is wrong; a text, a list of texts or nothing."""
_TIMES = ("at", "since")
_PERCENTAGES = ("share", "rate", "holdout")
_SECONDS = re.compile(r"_s(?=_per|_ago|\.|$)")
_EMPTY = {"tenants": "all"}  # what an empty list of these stands for
_GROUPED = 10_000  # whole numbers from here on are written with commas
_NAMES = ("seed", "seq", "entry", "port")
"""Numbers that name something: they are pasted into the next command."""


def print_reply(document: Mapping[str, Any], columns: Columns | None = None, *, as_json: bool) -> None:
    """Print a document: as JSON, or as lines and tables with its warnings on standard error."""
    if as_json:
        print_json(document)
        return
    print_document(document, columns or {})
    for message in warnings_of(document):
        warn(message)


def warnings_of(document: Mapping[str, Any]) -> list[str]:
    """Return what a reply says is wrong."""
    parts = [document.get(name) or () for name in WARNINGS]
    return [message for part in parts for message in ([part] if isinstance(part, str) else part)]


def print_document(document: Mapping[str, Any], columns: Columns) -> None:
    """Print `document` without its warnings, the tables in the order of its fields."""
    read = ReadReply({path: [part for name in names for part in name.split(" > ")] for path, names in columns.items()})
    read.collect({name: value for name, value in document.items() if name not in WARNINGS})
    if read.facts:
        print_facts([(label, shown(name, value)) for label, name, value in read.facts])
    for path, rows in read.tables:
        names = read.columns.get(path) or tuple(rows[0])
        cells = [[shown(*cell(row, name)) for name in names] for row in rows]
        print_table(title_of(path), [header(name) for name in names], cells)


@dataclass(slots=True)
class ReadReply:
    """The lines and tables of a document."""

    columns: Columns
    facts: list[tuple[str, str, object]] = field(default_factory=list)  # label, field and value
    tables: list[tuple[str, Sequence[Mapping[str, Any]]]] = field(default_factory=list)

    def collect(self, document: Mapping[str, Any], prefix: str = "") -> None:
        for name, value in document.items():
            path = f"{prefix}{name}"
            nested = [inner for inner in self.columns if inner.startswith(f"{path}.") and isinstance(value, list)]
            if tables := [table for table in self.columns if table.partition(":")[0] == path]:
                self.tables += [(table, value or ()) for table in tables]
            elif isinstance(value, list) and value and isinstance(value[0], dict) and not nested:
                self.tables.append((path, value))
            elif isinstance(value, dict) and not _is_one_value(value):
                self.collect(value, f"{path}.")
            elif not nested:
                self.facts.append((_label(path), name, value))
            for inner in nested:
                rows = [{**row, **item} for row in value for item in row[inner.removeprefix(f"{path}.")]]
                self.tables.append((inner, rows))


def title_of(path: str) -> str:
    """Return the title of a table by the path of its list."""
    title, _, part = path.partition(":")
    return _label(title) + (f": {part}" if part else "")


def header(column: str) -> str:
    return _label(column.partition("=")[0])


def cell(row: Mapping[str, Any], column: str) -> tuple[str, Any]:
    """Return the name, which states the unit, and the value of a column in a row."""
    path, _, unit = column.rpartition("=")[2].partition(":")
    value: Any = row
    name = ""
    for part in path.split("."):
        name = part if not _SECONDS.search(name) else name
        value = value.get(part) if isinstance(value, Mapping) else None
    return (f"{name}_{unit}" if unit else name), value


def _is_one_value(value: Mapping[str, Any]) -> bool:
    """Whether an object fits on one line: an estimate with its bounds, or numbers by name."""
    return all(number is None or isinstance(number, int | float) for number in value.values())


def _label(path: str) -> str:
    path = _SECONDS.sub("", path).removesuffix("_bytes")
    return " ".join(part.removeprefix("num_") for part in path.split(".")).replace("_", " ")


def shown(name: str, value: Any) -> str:
    """Return the text of a value; the field's name shows whether it is a time, duration, number of bytes or share."""
    match value:
        case None | "":
            text = "-"
        case bool():
            text = "yes" if value else "no"
        case int() | float():
            text = _shown_number(name, value)
        case list() | tuple():
            text = ", ".join(shown(name, item) for item in value) or _EMPTY.get(name, "none")
        case Mapping():
            text = _shown_mapping(name, value)
        case _:
            text = str(value)
    return text


def is_time(name: str) -> bool:
    """Return whether a field holds a moment."""
    return name in _TIMES or name.endswith("_at")


def as_yaml(value: object) -> str:
    """Return the text of a value as YAML on one line has it: JSON is YAML."""
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value, default=str)


def _shown_number(name: str, value: float) -> str:
    if is_time(name):
        return shown_time(value)
    if name.endswith("_bytes"):
        return size(value)
    if _SECONDS.search(name):
        return duration(value)
    if name in _NAMES:
        return str(value)
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= _GROUPED else str(value)
    return f"{figure(100 * value, 4)}%" if name.endswith(_PERCENTAGES) else figure(value, 4)


def _shown_mapping(name: str, value: Mapping[str, Any]) -> str:
    """Return an estimate as 'ESTIMATE (LOWER to UPPER)', other numbers each with its name."""
    if "estimate" in value:
        low, high = value.get("lower"), value.get("upper")
        bounds = "" if low is None else f" ({shown(name, low)} to {shown(name, high)})"
        return shown(name, value["estimate"]) + bounds
    unit = name if _SECONDS.search(name) else ""
    return ", ".join(f"{_label(key)} {shown(unit or key, item)}" for key, item in value.items()) or "none"
