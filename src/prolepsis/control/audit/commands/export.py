"""`prolepsis audit export`: hand entries of the audit log to other systems, once or as they come."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from prolepsis.control.audit.commands.log import opened_log
from prolepsis.control.audit.delivery import JsonLines, deliver, destination, held_cursor
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.store.configured import StoreOption
from prolepsis.core.errors import DeliveryFailed, StoreUnavailable
from prolepsis.core.terminal.admin import Key, NoServer, ServerUrl
from prolepsis.core.terminal.output import note, print_error

LONGEST_WAIT_S = 30.0  # between two attempts while the log or the destination cannot be reached


def export(  # noqa: PLR0917  # options of a command
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", help="a file, or http(s)://HOST:PORT/v1/logs (OTLP); default: standard output"),
    ] = None,
    after: Annotated[int, typer.Option(min=0, help="only entries after this number")] = 0,
    cursor: Annotated[
        Path | None, typer.Option(help="file that keeps how far entries were delivered; the next export begins there")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="continue with new entries until interrupted")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="seconds between two looks for new entries")] = 1.0,
    control_only: Annotated[
        bool, typer.Option("--control-only", help="leave out the entries of served requests")
    ] = False,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
) -> None:
    """Write entries as JSON lines, or send them to an OTLP endpoint; each one arrives at least once.

    A complete export to a file can be verified without the store.
    """
    skipped = frozenset([SERVED]) if control_only else frozenset[str]()
    with (
        held_cursor(cursor, after) as position,
        closing(JsonLines(sys.stdout) if output is None else destination(output, append=cursor is not None)) as to,
    ):

        def deliver_new() -> int:
            with opened_log(store, url, key) as log:
                return deliver(log.entries(position.seq), position, to, skipped)

        if follow:
            keep_delivering(deliver_new, interval)
        number = deliver_new()
    if output is not None:
        note(f"{number} entries are in {output}")


def keep_delivering(
    deliver_new: Callable[[], int], interval_s: float, sleep: Callable[[float], object] = time.sleep
) -> NoReturn:
    """Deliver for ever; while log or destination cannot be reached, say so and wait longer each time."""
    wait_s = interval_s
    while True:
        try:
            deliver_new()
            wait_s = interval_s
        except (DeliveryFailed, StoreUnavailable, NoServer) as error:
            print_error(error)
            wait_s = min(2 * wait_s, max(LONGEST_WAIT_S, interval_s))
        sleep(wait_s)
