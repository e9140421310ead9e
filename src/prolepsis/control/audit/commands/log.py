"""The audit log as commands read it: of a store, of a running server, or of an export."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry, Details
from prolepsis.control.audit.verify import Anchor, parse_anchor
from prolepsis.control.store.configured import ready_database
from prolepsis.control.store.signing import SignedHead
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.admin import ask, server_in_place

_PAGE = 500


class StoredLog:
    """The log of a store, as one transaction sees it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.head = Anchor(*chain.head(connection))
        self.signed = chain.signed_head(connection)
        self.newest = partial(chain.newest, connection)
        self.entries = partial(chain.entries, connection)
        self.written = partial(chain.written, connection)


class RemoteLog:
    """The log of a server, up to its head at the first request; raises the errors of `ask`."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key

    @property
    def head(self) -> Anchor:
        return parse_anchor(self._end["head"])

    @property
    def signed(self) -> SignedHead | None:
        signed = self._end["signed_head"]
        return None if signed is None else SignedHead(**signed)

    def newest(self, number: int, *, action: str | None, tenant: str | None) -> list[AuditEntry]:
        return [_parsed(entry) for entry in self._ask(last=number, action=action, tenant=tenant)["entries"]]

    def entries(self, after: int = 0) -> Iterator[AuditEntry]:
        while after < self.head.seq:
            page = [_parsed(entry) for entry in self._ask(last=_PAGE, after=after)["entries"]]
            yield from (entry for entry in page if entry.seq <= self.head.seq)
            if not page:
                return
            after = page[-1].seq

    def written(self, since: datetime, until: datetime) -> Iterator[AuditEntry]:
        period: dict[str, object] = {"since": since.isoformat(), "until": until.isoformat(), "last": _PAGE}
        after = 0
        while page := [_parsed(entry) for entry in self._ask(**period, after=after)["entries"]]:
            yield from page
            after = page[-1].seq

    @cached_property
    def _end(self) -> Any:
        return self._ask(last=1)

    def _ask(self, **query: object) -> Any:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return ask(self._url, self._key, "GET", f"/admin/audit?{given}")


Log = StoredLog | RemoteLog
"""`newest` returns the newest entries, the oldest first; `entries` those in order after a number; `written` those of a
period in order, without served requests."""


@contextmanager
def opened_log(store: str | None, url: str | None, key: str | None) -> Iterator[Log]:
    """Open the log of a server, or of the store without one."""
    if server := server_in_place(url, store, "--store"):
        yield RemoteLog(server, key)
        return
    with ready_database(store) as database, database.read() as connection:
        yield StoredLog(connection)


def exported(lines: Iterable[str]) -> Iterator[AuditEntry]:
    """Yield the entries of an export; raises `ConfigError` that names a line without an entry."""
    for number, line in enumerate(lines, 1):
        try:
            yield _parsed(json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"line {number} is not an audit entry as `prolepsis audit export` writes it") from None


def _parsed(fields: Mapping[str, Any]) -> AuditEntry:
    """Return an entry; raises ValueError, TypeError or KeyError for fields of another kind."""
    details = None if fields["details"] is None else Details(**fields["details"])
    numbers = (fields["seq"], *fields["erases"])
    if not all(type(number) is int for number in numbers):
        raise TypeError("numbers of entries are whole numbers")
    return AuditEntry(**{**fields, "details": details, "erases": tuple(fields["erases"])})
