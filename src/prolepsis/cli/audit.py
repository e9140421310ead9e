"""`prolepsis audit`: who did what, and whether the log still says what was written."""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, TextIO

import typer

from prolepsis.cli.groups import AsJson, command_group
from prolepsis.cli.output import EPILOG, FAILED, note, print_error, print_facts, print_json, print_table
from prolepsis.cli.stores import StoreOption, ready_database
from prolepsis.core.errors import ConfigError
from prolepsis.store.audit import chain
from prolepsis.store.audit.entry import AuditEntry, Told
from prolepsis.store.audit.verify import Anchor, Verified, parse_anchor
from prolepsis.store.audit.verify import verify as verify_entries

app = command_group("Verify, show and export the audit log.")

_FAULTS_SHOWN = 20


@app.command(epilog=EPILOG)
def verify(
    anchor: Annotated[
        str | None,
        typer.Option(
            metavar="NUMBER:DIGEST", help="a head that was printed before: what led to it must still be there"
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an export, in place of the store", exists=True, dir_okay=False)
    ] = None,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry of the chain; status 1 where it is not what was written.

    Note the head down somewhere else, and give it as --anchor the next time: who can write the whole store can write a
    whole chain.
    """
    noted = parse_anchor(anchor) if anchor else None
    if file is not None:
        with file.open(encoding="utf-8") as lines:
            _show_verified(verify_entries(_exported(lines), anchor=noted), as_json=as_json)
        return
    with ready_database(store) as database, database.read() as connection:
        head = Anchor(*chain.head(connection))
        verified = verify_entries(chain.entries(connection), head=head, anchor=noted)
    _show_verified(verified, as_json=as_json)


@app.command(epilog=EPILOG)
def show(
    last: Annotated[int, typer.Option(min=1, help="how many of the newest entries")] = 20,
    action: Annotated[str | None, typer.Option(help="only of this kind, such as policy.reloaded")] = None,
    tenant: Annotated[str | None, typer.Option(help="only about this tenant")] = None,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest entries, the oldest of them first."""
    with ready_database(store) as database, database.read() as connection:
        entries = chain.newest(connection, last, action=action, tenant=tenant)
    if as_json:
        print_json([entry.plain() for entry in entries])
        return
    rows = [[str(entry.seq), entry.at[:19], *_who_and_what(entry)] for entry in entries]
    print_table("audit log (UTC)", ["", "at", "actor", "action", "subject", "tenant"], rows)


@app.command(epilog=EPILOG)
def export(
    output: Annotated[Path | None, typer.Option("--output", "-o", help="default: standard output")] = None,
    after: Annotated[int, typer.Option(min=0, help="only entries after this number")] = 0,
    store: StoreOption = None,
) -> None:
    """Write entries as JSON, one a line; a whole export can be verified without the store."""
    with ready_database(store) as database, database.read() as connection:
        entries = chain.entries(connection, after)
        if output is None:
            _write(entries, sys.stdout)
            return
        with output.open("w", encoding="utf-8") as lines:
            number = _write(entries, lines)
    note(f"{number} entries are in {output}")


def _write(entries: Iterable[AuditEntry], lines: TextIO) -> int:
    number = 0
    for number, entry in enumerate(entries, 1):  # noqa: B007
        lines.write(json.dumps(entry.plain(), ensure_ascii=False) + "\n")
    return number


def _exported(lines: Iterable[str]) -> Iterator[AuditEntry]:
    for number, line in enumerate(lines, 1):
        try:
            fields = json.loads(line)
            told = None if fields["told"] is None else Told(**fields.pop("told"))
            yield AuditEntry(**{**fields, "told": told, "erases": tuple(fields["erases"])})
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"line {number} is no audit entry as `prolepsis audit export` writes it") from None


def _show_verified(verified: Verified, *, as_json: bool) -> None:
    facts: list[tuple[str, object]] = [
        ("entries", verified.num_entries),
        ("erased", verified.num_erased),
        ("faults", len(verified.faults)),
        ("head", verified.head),
    ]
    if as_json:
        faults = [{"seq": fault.seq, "what": fault.what} for fault in verified.faults]
        print_json({**dict(facts), "faults": faults, "head": str(verified.head)})
    else:
        print_facts(facts)
        for fault in verified.faults[:_FAULTS_SHOWN]:
            print_error(f"entry {fault.seq} {fault.what}")
    if verified.faults:
        raise typer.Exit(FAILED)


def _who_and_what(entry: AuditEntry) -> list[str]:
    if entry.told is None:
        return ["erased", entry.action, "", ""]
    return [entry.told.actor, entry.action, entry.told.subject, entry.told.tenant]
