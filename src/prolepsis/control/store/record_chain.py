"""The chain over request records: what was written and what was deleted, in order, without what a record says.

A link holds the digest of its record. The record's random id is part of what is digested, and is erased from the link
when the record is deleted, so that no guess can be checked.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

from sqlalchemy import Connection, Double, Row, insert, select, update

from prolepsis.control.store.signing import AuditKeys, SignedHead, keys_of, signed_columns, signed_row
from prolepsis.control.store.tables import record_chain, record_head, request_records
from prolepsis.core.json_value import canonical, digest_of, whole_numbers

START = "0" * 64
"""The digest before the first link."""
_PAGE = 500
_FLOATS = tuple(column.name for column in request_records.columns if isinstance(column.type, Double))


LinkKind = Literal[
    "record",
    "deletion",
    "unsigned",  # what follows was signed, what is before was not
    "invalid",  # no known key had signed what is before
]


_Part = tuple[LinkKind, str | None, str, tuple[int, ...]]
"""Kind, record id, content digest and deleted numbers of a link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    seq: int
    """From 1, without gaps."""
    kind: LinkKind
    record_id: str | None
    """Id of the record, if it is still there."""
    content_digest: str
    deletes: tuple[int, ...]
    """Numbers of the links whose records this link says were deleted."""
    digest: str

    def expected_digest(self, previous: str) -> str:
        return digest_of([self.seq, self.kind, self.content_digest, list(self.deletes), previous])


def append_records(connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
    """Add a link for each row of `request_records`; other writers wait until the transaction ends."""
    _append(connection, [("record", str(row["record_id"]), content_digest(row), ()) for row in rows])


def append_deletion(connection: Connection, record_ids: Sequence[str]) -> None:
    """Add a link that says that these records are deleted; those from before there was a chain have none."""
    _lock(connection)
    linked = record_chain.c.record_id.in_(record_ids)
    deletes = sorted(connection.scalars(select(record_chain.c.seq).where(linked)))
    if deletes:
        connection.execute(update(record_chain).where(linked).values(record_id=None))
        _append(connection, [("deletion", None, START, tuple(deletes))])


def head(connection: Connection) -> tuple[int, str]:
    """Return number and digest of the last link, (0, `START`) before the first."""
    row = connection.execute(select(record_head.c.seq, record_head.c.digest)).first()
    return (0, START) if row is None else (row.seq, row.digest)


def signed_head(connection: Connection) -> SignedHead | None:
    """Return the head with its signature, None if it has none."""
    return signed_row("requests", connection.execute(select(record_head)).first())


def digest_at(connection: Connection, seq: int) -> str | None:
    """Return the digest of a link, None if there is none of that number."""
    digest: str | None = connection.scalar(select(record_chain.c.digest).where(record_chain.c.seq == seq))
    return digest


def links(connection: Connection) -> Iterator[tuple[ChainLink, Mapping[str, object] | None]]:
    """Yield the links in order, each with its record if it still exists."""
    after = 0
    while True:
        joined = record_chain.outerjoin(request_records, record_chain.c.record_id == request_records.c.record_id)
        query = select(record_chain, *(column.label(f"row_{column.name}") for column in request_records.columns))
        query = query.select_from(joined).where(record_chain.c.seq > after).order_by(record_chain.c.seq).limit(_PAGE)
        found = connection.execute(query).all()
        yield from map(_read, found)
        if len(found) < _PAGE:
            return
        after = found[-1].seq


def num_unlinked(connection: Connection) -> int:
    """Return the number of records without a link that ended after the first one with a link."""
    first = select(request_records.c.ended_at).join(
        record_chain, record_chain.c.record_id == request_records.c.record_id
    )
    since = connection.scalar(first.order_by(record_chain.c.seq).limit(1))
    if since is None:
        return 0
    known = select(record_chain.c.record_id).where(record_chain.c.record_id.is_not(None))
    strange = select(request_records.c.record_id).where(
        request_records.c.ended_at > since, request_records.c.record_id.not_in(known)
    )
    return len(connection.execute(strange).all())


def content_digest(row: Mapping[str, object]) -> str:
    """Return the SHA-256 of a record as the database gives it back; columns that later versions add are null in it."""
    values = {
        name: float(value) if name in _FLOATS and isinstance(value, int | float) else value
        for name, value in row.items()
        if value is not None
    }
    return sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _lock(connection: Connection) -> tuple[int, str]:
    row = connection.execute(select(record_head).with_for_update()).one()
    return row.seq, row.digest


def _append(connection: Connection, parts: Sequence[_Part]) -> None:
    (seq, digest), keys = _lock(connection), keys_of(connection)
    added = []
    for kind, record_id, content, deletes in (*_notices(connection, keys), *parts):
        seq += 1
        link = ChainLink(seq=seq, kind=kind, record_id=record_id, content_digest=content, deletes=deletes, digest="")
        digest = link.expected_digest(digest)
        row = {"seq": seq, "kind": kind, "record_id": record_id, "content_digest": content, "digest": digest}
        added.append({**row, "deletes": canonical(deletes)})
    signed = keys.sign("requests", seq, digest) if keys is not None else None
    connection.execute(insert(record_chain), added)
    connection.execute(update(record_head).values(seq=seq, digest=digest, **signed_columns(signed)))


def _notices(connection: Connection, keys: AuditKeys | None) -> list[_Part]:
    """Return what the next link has to say about the present head, so that no signature follows a forged one."""
    if keys is None or not head(connection)[0]:
        return []
    signed = signed_head(connection)
    if signed is None:
        return [("unsigned", None, START, ())]
    return [] if keys.public.fault(signed) is None else [("invalid", None, START, ())]


def _read(row: Row[Any]) -> tuple[ChainLink, Mapping[str, object] | None]:
    values = row._mapping
    link = ChainLink(
        seq=values["seq"],
        kind=values["kind"],
        record_id=values["record_id"],
        content_digest=values["content_digest"],
        deletes=whole_numbers(values["deletes"]),
        digest=values["digest"],
    )
    record = {column.name: values[f"row_{column.name}"] for column in request_records.columns}
    return link, None if record["record_id"] is None else record
