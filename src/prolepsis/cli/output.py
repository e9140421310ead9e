"""Output of commands and their exit statuses: results on stdout, everything else on stderr."""

import io
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from prolepsis.core.errors import (
    MemoryPlanError,
    ModelError,
    ModelNotFound,
    ProlepsisError,
    UserError,
)

if TYPE_CHECKING:
    from prolepsis.cli.config import Settings

OK = 0
FAILED = 1
BAD_INPUT = 2
NO_MODEL = 3
NOT_SERVED = 4
NO_MEMORY = 5
INTERRUPTED = 130

EXIT_STATUSES: dict[int, str] = {
    OK: "done",
    FAILED: "a run failed, or a check found a difference",
    BAD_INPUT: "bad input, flags or configuration",
    NO_MODEL: "the model is not available or not usable",
    NOT_SERVED: "the address is not available, or the server failed",
    NO_MEMORY: "the memory budget is too small",
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
    """Return the documented exit status of an error."""
    return next(status for kind, status in _STATUS_OF if isinstance(error, kind))


def stdout() -> Console:
    return Console(highlight=False)


def stderr() -> Console:
    return Console(stderr=True, highlight=False)


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


def quiet_logs() -> None:
    """Log only warnings and errors, on standard error."""
    from prolepsis.telemetry.logs import configure_logs

    configure_logs("warning", stream=cast(TextIO, _CurrentStderr()))


def print_json(value: object) -> None:
    """Print one JSON document on stdout, as a program reads it."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stdout."""
    stdout().print(_table(title, columns, rows))


def stderr_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on stderr, in addition to a result on stdout."""
    stderr().print(_table(title, columns, rows))


def print_facts(facts: Sequence[tuple[str, object]], console: Console | None = None) -> None:
    """Print one line for each (name, value), never wrapped, so that paths can be copied; default: on stdout."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        shown = "-" if value is None else escape(str(value))
        (console or stdout()).print(f"[bold]{escape(name.ljust(width))}[/]  {shown}", soft_wrap=True)


def shown_time(seconds: float) -> str:
    """Return a Unix time as tables show it, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns after the first are right-aligned where every cell is a number."""
    table = Table(title=title, title_justify="left", title_style="bold")
    for i, column in enumerate(columns):
        numeric = i > 0 and all(_is_number(row[i]) for row in rows)
        table.add_column(column, justify="right" if numeric else "left", overflow="fold")
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


def _is_number(cell: str) -> bool:
    figure = cell.replace(".", "", 1).replace(",", "").removesuffix("%").removesuffix("x").strip()
    return figure.isdigit() or cell in ("", "-")


HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs")]


def command_group(help_text: str) -> typer.Typer:
    """Return an empty group of subcommands."""
    return typer.Typer(
        help=help_text,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=HELP_FLAGS,
    )
