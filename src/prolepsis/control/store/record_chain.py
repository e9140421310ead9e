"""The chain over request records: what was written and what was deleted, in order, without what a record says.

A link holds the digest of its record. The record's random id is part of what is digested, and is erased from the link
when the record is deleted, so that no guess can be checked.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import Connection, Double, func, select, update

from prolepsis.control.store.links import START_OF_CHAIN, ChainLink, append, chained, head
from prolepsis.control.store.tables import chain_links, request_records

_PAGE = 500
_FLOATS = frozenset(column.name for column in request_records.columns if isinstance(column.type, Double))
_RECORD = "record"
_OF_RECORDS = chain_links.c.chain == "requests"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLink(ChainLink):
    """A link that is about a record has the digest of it; another one has nothing besides itself."""

    record_id: str | None
    record: Mapping[str, object] | None = None  # as the database has it now; None: not there, or not read

    def found_digest(self) -> str | None:
        if self.action != _RECORD:
            return self.details_digest
        return None if self.record is None else content_digest(self.record)

    def columns(self) -> dict[str, object]:
        return {**ChainLink.columns(self), "record_id": self.record_id}


def append_records(connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
    """Add a link for each row of `request_records`; other writers wait until the transaction ends."""
    new = [_link(_RECORD, details_digest=content_digest(row), record_id=str(row["record_id"])) for row in rows]
    append(connection, "requests", new, lambda action, _: _link(action))


def append_deletion(connection: Connection, record_ids: Sequence[str]) -> None:
    """Add a link that says that these records are deleted; those from before there was a chain have none."""
    head(connection, "requests", hold=True)
    linked = _OF_RECORDS & chain_links.c.record_id.in_(record_ids)
    erases = sorted(connection.scalars(select(chain_links.c.seq).where(linked)))
    if erases:
        connection.execute(update(chain_links).where(linked).values(record_id=None))
        append(connection, "requests", [_link("deletion", erases=tuple(erases))], lambda action, _: _link(action))


def _link(
    action: str, *, details_digest: str = START_OF_CHAIN, record_id: str | None = None, erases: tuple[int, ...] = ()
) -> RecordLink:
    return RecordLink(
        action=action, details_digest=details_digest, record_id=record_id, erases=erases, seq=0, previous="", digest=""
    )


def links(connection: Connection) -> Iterator[RecordLink]:
    """Yield the links in order, each with its record if it still exists."""
    after, previous = 0, START_OF_CHAIN
    is_its_record = chain_links.c.record_id == request_records.c.record_id
    query = select(chain_links, *(column.label(f"row_{column.name}") for column in request_records.columns))
    query = query.select_from(chain_links.outerjoin(request_records, is_its_record)).order_by(chain_links.c.seq)
    while True:
        page = query.where(_OF_RECORDS, chain_links.c.seq > after).limit(_PAGE)
        rows = connection.execute(page).mappings().all()
        for row in rows:
            record = {column.name: row[f"row_{column.name}"] for column in request_records.columns}
            found = None if record["record_id"] is None else record
            yield RecordLink(**chained(row), previous=previous, record_id=row["record_id"], record=found)
            after, previous = row["seq"], row["digest"]
        if len(rows) < _PAGE:
            return


def num_unlinked(connection: Connection) -> int:
    """Return the number of records without a link that ended after the first one with a link."""
    of, linked = chain_links.c, select(chain_links.c.record_id).where(chain_links.c.record_id.is_not(None))
    first = select(request_records.c.ended_at).join(chain_links, of.record_id == request_records.c.record_id)
    since = connection.scalar(first.order_by(of.seq).limit(1))
    if since is None:
        return 0
    is_strange = (request_records.c.ended_at > since) & request_records.c.record_id.not_in(linked)
    return connection.scalar(select(func.count()).select_from(request_records).where(is_strange)) or 0


def content_digest(row: Mapping[str, object]) -> str:
    """Return the SHA-256 of a record as the database gives it back; columns that later versions add are null in it."""
    values = {
        name: float(value) if name in _FLOATS and isinstance(value, int | float) else value
        for name, value in row.items()
        if value is not None
    }
    return sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
