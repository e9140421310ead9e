"""Output of commands and their exit statuses: results on stdout, everything else on stderr."""

import io
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, TypeVar, cast

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand, TyperGroup

from prolepsis.core.errors import MemoryPlanError, ModelError, ModelNotFound, ProlepsisError, UserError

if TYPE_CHECKING:
    from prolepsis.core.terminal.config import Settings

OK = 0
FAILED = 1
BAD_INPUT = 2
NO_MODEL = 3
NOT_SERVED = 4
NO_MEMORY = 5
UNPROVEN = 6
INTERRUPTED = 130

EXIT_STATUSES: dict[int, str] = {
    OK: "done",
    FAILED: "a run failed, or a check found a difference",
    BAD_INPUT: "bad input, flags or configuration",
    NO_MODEL: "the model is not available or not usable",
    NOT_SERVED: "the address is not available, or the server failed",
    NO_MEMORY: "the memory budget is too small, or the machine or a limit of the process allows less",
    UNPROVEN: "nothing is wrong, but something is not proven",
    INTERRUPTED: "interrupted",
}

EPILOG = "Exit statuses: " + "; ".join(f"{status} {meaning}" for status, meaning in EXIT_STATUSES.items()) + "."

_STATUS_OF: tuple[tuple[type[ProlepsisError], int], ...] = (
    (ModelNotFound, NO_MODEL),
    (ModelError, NO_MODEL),
    (UserError, BAD_INPUT),
    (MemoryPlanError, NO_MEMORY),
    (ProlepsisError, FAILED),
)


def exit_status(error: ProlepsisError) -> int:
    return next(status for kind, status in _STATUS_OF if isinstance(error, kind))


_WIDTH = 150  # characters of a line where nothing says how wide a terminal is


def stdout() -> Console:
    return _console(to_stderr=False)


def stderr() -> Console:
    return _console(to_stderr=True)


def _console(*, to_stderr: bool) -> Console:
    console = Console(stderr=to_stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH
    return console


def print_error(error: ProlepsisError | str) -> None:
    """Print one line on stderr."""
    line = " ".join(str(error).split()) or type(error).__name__
    stderr().print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)


def warn(message: str) -> None:
    stderr().print(f"[yellow]warning:[/] {escape(message)}", soft_wrap=True)


def note(message: str) -> None:
    stderr().print(f"[dim]{escape(message)}[/]", soft_wrap=True)


class _CurrentStderr(io.TextIOBase):
    """Writes to the standard error of the moment, which tests replace."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def quiet_logs(level: Literal["warning", "error"] = "warning") -> None:
    """Log only what is of this level or worse, on standard error."""
    from prolepsis.core.telemetry.logs import configure_logs

    configure_logs(level, stream=cast(TextIO, _CurrentStderr()))


def print_json(value: object) -> None:
    """Print one JSON document on stdout, as a program reads it."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    console: Console | None = None,
    *,
    in_order: bool = False,
) -> None:
    """Print a table; default: on stdout.

    Where words would have to be broken, rows that share the value of the widest column become a table of their own,
    unless the rows are `in_order`.
    """
    out, cells = console or stdout(), list(zip(*rows, strict=True))
    if not rows:
        out.print(f"[bold]{escape(title)}[/]  none", soft_wrap=True)
        return
    widths = [_width(column) for column in cells]
    gaps = 2 * (len(columns) + 1)
    if gaps + sum(max(len(name), width) for name, width in zip(columns, widths, strict=True)) > out.width:
        columns = [
            fill(name, max(1, width, *map(len, name.split()))) for name, width in zip(columns, widths, strict=True)
        ]
    whole = gaps + sum(max(width, *map(len, name.split("\n"))) for name, width in zip(columns, widths, strict=True))
    widest = widths.index(max(widths))
    values = dict.fromkeys(cells[widest])
    if in_order or whole <= out.width or len(values) == len(rows) > 1:
        out.print(f"[bold]{escape(title)}[/]", soft_wrap=True)
        out.print(_table(columns, rows))
        return
    rest = [i for i in range(len(columns)) if i != widest]
    for value in values:
        group = [[row[i] for i in rest] for row in rows if row[widest] == value]
        name = " ".join(columns[widest].split())
        print_table(f"{title}, {name} {value}", [" ".join(columns[i].split()) for i in rest], group, out)


def _width(cells: Sequence[str]) -> int:
    """Return the characters that a column needs: the length of its longest number or word."""
    return max(
        (len(word) for cell in cells for word in ([cell] if _NUMBER.fullmatch(cell) else cell.split())), default=0
    )


def print_facts(facts: Sequence[tuple[str, object]], console: Console | None = None) -> None:
    """Print one line for each (name, value), never wrapped, so that paths can be copied; default: on stdout."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        shown = "-" if value is None else escape(str(value))
        (console or stdout()).print(f"[bold]{escape(name.ljust(width))}[/]  {shown}", soft_wrap=True)


def shown_time(seconds: float) -> str:
    """Return a Unix time as tables show it, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


_NUMBER = re.compile(r"(-?[\d.,]+(e[-+]\d+)?( ?([%x]|[a-zA-Zµ]{1,3}))?(/\d+)?( \(.*\))?|-)?")


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns after the first are right-aligned where every cell is a number."""
    table = Table(box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False)
    for i, column in enumerate(columns):
        numeric = i > 0 and all(_NUMBER.fullmatch(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold", no_wrap=numeric)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def show_settings(settings: "Settings") -> None:
    """Print the configuration in effect in the form of a configuration file (JSON values are YAML)."""
    for section in settings.sections():
        for name, value in section.model_dump(mode="json").items():
            print(f"{name}: {json.dumps(value)}  # {settings.origins.get(name, 'default')}")


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


Run = TypeVar("Run", bound=Callable[..., Any])
HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs")]


class Command(TyperCommand):
    """Lists its options below the title of their panel; a name is never cut, however narrow the terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                panel = getattr(param, "rich_help_panel", None) or f"{param.param_type_name.capitalize()}s"
                panels.setdefault(panel, []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


class Group(TyperGroup):
    """Lists its commands with their first sentences whole."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").partition("\n\n")[0]) for name, each in self.commands.items()])


class Commands(typer.Typer):
    """Subcommands whose help looks like that of every command."""

    def command(self, name: str | None = None, **given: Any) -> Callable[[Run], Run]:
        return super().command(name, cls=Command, epilog=EPILOG, context_settings=HELP_FLAGS, **given)


def command_group(help_text: str) -> Commands:
    """Return an empty group of subcommands."""
    return Commands(
        cls=Group,
        help=help_text,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings=HELP_FLAGS,
    )
