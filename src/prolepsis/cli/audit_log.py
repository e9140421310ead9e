"""The audit log where it is not a store: in an export, or behind a running server."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from prolepsis.cli.servers import ask
from prolepsis.core.errors import ConfigError
from prolepsis.store.audit.entry import AuditEntry, Told
from prolepsis.store.audit.verify import Anchor, parse_anchor

_PAGE = 500


class RemoteLog:
    """Asks a server for entries; raises as `ask` does."""

    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._key = key
        self._head: Anchor | None = None

    @property
    def head(self) -> Anchor:
        """The end of the chain when this was first asked; entries are read up to it."""
        if self._head is None:
            self._head = parse_anchor(self._ask(last=1)["head"])
        return self._head

    def newest(self, number: int, *, action: str | None, tenant: str | None) -> list[AuditEntry]:
        found = self._ask(last=number, action=action, tenant=tenant)["entries"]
        return [_parsed(entry) for entry in found]

    def entries(self, after: int = 0) -> Iterator[AuditEntry]:
        """Yield entries in their order, from the one after number `after` on."""
        while after < self.head.seq:
            page = [_parsed(entry) for entry in self._ask(last=_PAGE, after=after)["entries"]]
            yield from (entry for entry in page if entry.seq <= self.head.seq)
            if not page:
                return
            after = page[-1].seq

    def _ask(self, **query: object) -> Any:
        given = urlencode({name: value for name, value in query.items() if value is not None})
        return ask(self._url, self._key, "GET", f"/admin/audit?{given}")


def exported(lines: Iterable[str]) -> Iterator[AuditEntry]:
    """Yield the entries of an export; raises `ConfigError` naming the line that is none."""
    for number, line in enumerate(lines, 1):
        try:
            yield _parsed(json.loads(line))
        except (ValueError, TypeError, KeyError):
            raise ConfigError(f"line {number} is no audit entry as `prolepsis audit export` writes it") from None


def _parsed(fields: Mapping[str, Any]) -> AuditEntry:
    told = None if fields["told"] is None else Told(**fields["told"])
    return AuditEntry(**{**fields, "told": told, "erases": tuple(fields["erases"])})
