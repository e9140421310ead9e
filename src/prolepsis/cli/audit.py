"""`prolepsis audit`: verify, show, export and replay the audit log of a store, of an export or of a running server."""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import quote, urlencode

import typer
from sqlalchemy import Connection

from prolepsis.audit import chain
from prolepsis.audit.entry import SERVED, AuditEntry, Details
from prolepsis.audit.verify import Anchor, Verified, parse_anchor
from prolepsis.audit.verify import verify as verify_entries
from prolepsis.cli.admin import Key, ask
from prolepsis.cli.documents import print_reply
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import (
    EPILOG,
    FAILED,
    AsJson,
    command_group,
    note,
    print_error,
    print_facts,
    print_json,
    print_table,
)
from prolepsis.cli.store import StoreOption, ready_database
from prolepsis.core.errors import ConfigError, InvalidParameter

_PAGE = 500


class Log(Protocol):
    """An audit log; entries are read up to its head."""

    @property
    def head(self) -> Anchor: ...

    def newest(self, number: int, *, action: str | None, tenant: str | None) -> list[AuditEntry]:
        """Return the newest entries, oldest first."""

    def entries(self, after: int = 0) -> Iterable[AuditEntry]:
        """Return the entries in order, beginning after number `after`."""


class StoredLog:
    """The log of a store."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.head = Anchor(*chain.head(connection))
        self.newest = partial(chain.newest, connection)
        self.entries = partial(chain.entries, connection)


class RemoteLog:
    """The log of a server; raises the errors of `ask`."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key

    @cached_property
    def head(self) -> Anchor:
        """The end of the chain at the first request."""
        return parse_anchor(self._ask(last=1)["head"])

    def newest(self, number: int, *, action: str | None, tenant: str | None) -> list[AuditEntry]:
        return [_parsed(entry) for entry in self._ask(last=number, action=action, tenant=tenant)["entries"]]

    def entries(self, after: int = 0) -> Iterator[AuditEntry]:
        while after < self.head.seq:
            page = [_parsed(entry) for entry in self._ask(last=_PAGE, after=after)["entries"]]
            yield from (entry for entry in page if entry.seq <= self.head.seq)
            if not page:
                return
            after = page[-1].seq

    def _ask(self, **query: object) -> Any:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return ask(self._url, self._key, "GET", f"/admin/audit?{given}")


@contextmanager
def _opened(store: str | None, url: str | None, key: str | None) -> Iterator[Log]:
    """Open the log of the server at `url`, without one that of the store."""
    if url is not None:
        yield RemoteLog(url, key)
        return
    with ready_database(store) as database, database.read() as connection:
        yield StoredLog(connection)


def exported(lines: Iterable[str]) -> Iterator[AuditEntry]:
    """Yield the entries of an export; raises `ConfigError` that names a line without an entry."""
    for number, line in enumerate(lines, 1):
        try:
            yield _parsed(json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"line {number} is no audit entry as `prolepsis audit export` writes it") from None


def _parsed(fields: Mapping[str, Any]) -> AuditEntry:
    details = None if fields["details"] is None else Details(**fields["details"])
    return AuditEntry(**{**fields, "details": details, "erases": tuple(fields["erases"])})


app = command_group("Verify, show, export and replay the audit log.")

ServerUrl = Annotated[str | None, typer.Option("--url", help="address of a running server, instead of the store")]
REPLAY_TIMEOUT_S = 90.0
"""Longer than a replay may take on a server."""
_FAULTS_SHOWN = 20


@app.command(epilog=EPILOG)
def verify(
    *,
    anchor: Annotated[
        str | None,
        typer.Option(metavar="NUMBER:DIGEST", help="a head that was printed earlier: the chain must still contain it"),
    ] = None,
    file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="an export, instead of the store", exists=True, dir_okay=False)
    ] = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Verify every entry of the chain; exit status 1 if an entry was changed.

    Keep the printed head in another place and pass it as --anchor the next time: an attacker who can write the whole
    store can also write a whole chain.
    """
    noted = parse_anchor(anchor) if anchor else None
    if file is not None:
        with file.open(encoding="utf-8") as lines:
            _show_verified(verify_entries(exported(lines), anchor=noted), as_json=as_json)
        return
    with _opened(store, url, key) as log:
        _show_verified(verify_entries(log.entries(), head=log.head, anchor=noted), as_json=as_json)


@app.command(epilog=EPILOG)
def show(
    *,
    last: Annotated[int, typer.Option(min=1, help="number of the newest entries")] = 20,
    action: Annotated[str | None, typer.Option(help="only entries with this action, e.g. policy.reloaded")] = None,
    tenant: Annotated[str | None, typer.Option(help="only entries about this tenant")] = None,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Show the newest entries, oldest first."""
    with _opened(store, url, key) as log:
        entries = log.newest(last, action=action, tenant=tenant)
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
    url: ServerUrl = None,
    key: Key = None,
) -> None:
    """Write entries as JSON lines; a complete export can be verified without the store."""
    with (
        _opened(store, url, key) as log,
        output.open("w", encoding="utf-8") if output else nullcontext(sys.stdout) as to,
    ):
        number = 0
        for number, entry in enumerate(log.entries(after), 1):  # noqa: B007
            to.write(json.dumps(entry.plain(), ensure_ascii=False) + "\n")
    if output is not None:
        note(f"{number} entries are in {output}")


@app.command(epilog=EPILOG)
def replay(
    context: typer.Context,
    entry: Annotated[str, typer.Argument(metavar="ID", help="number of an entry, or the id of a request")],
    *,
    store: StoreOption = None,
    url: ServerUrl = None,
    key: Key = None,
    model: Annotated[str | None, typer.Option(help="model for a replay here; default: the configured model")] = None,
    any_model: Annotated[
        bool, typer.Option("--any-model", help="replay here even with another model or forward than recorded")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay a recorded request without speculation, here or on the server at --url; exit status 1 on a difference."""
    if url is not None:
        document = ask(url, key, "POST", f"/admin/audit/{quote(entry, safe='')}/replay", timeout_s=REPLAY_TIMEOUT_S)
    else:
        with ready_database(store) as database, database.read() as connection:
            found = chain.find(connection, entry, action=SERVED)
        if found is None:
            message = f"there is no audit entry {entry[:128]!r}; allowed: a number, or the id of a request that has one"
            raise InvalidParameter(message, param="entry")
        from prolepsis.cli.audit_replay import replayed_here
        from prolepsis.cli.engine import running

        document = replayed_here(found, settings_here(model=model), context.obj or running, any_model=any_model)
    print_reply(document, {"differences": ("sample", "position", "kind", "margin", "tolerance")}, as_json=as_json)
    if document["outcome"] != "match":
        raise typer.Exit(FAILED)


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
    if entry.details is None:
        return ["erased", entry.action, "", ""]
    return [entry.details.actor, entry.action, entry.details.subject, entry.details.tenant]
