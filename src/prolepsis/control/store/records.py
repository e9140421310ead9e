"""Records of requests that have ended: figures and names, no text of prompt or answer."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar, Self
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select

from prolepsis.control.store import documents as of
from prolepsis.control.store import record_chain
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.queue import Kind, QueueItem
from prolepsis.control.store.tables import NAMES, request_records
from prolepsis.core.ended import PromptEnded, RequestAbout
from prolepsis.core.request_figures import figures_of


@dataclass(frozen=True, slots=True)
class RequestRecord(QueueItem):
    kind: ClassVar[Kind] = "request"

    row: Mapping[str, object]
    began_at: float = field(default_factory=time.time)

    @property
    def tenant(self) -> str:
        return str(self.row["tenant"])

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        add(connection, items)


def request_record(about: RequestAbout, prompt: PromptEnded, *, prices_version: str | None = None) -> RequestRecord:
    """Return the record of a prompt of a request that ends now; `prices_version` names the price in use."""
    now, row = time.time(), figures_of(about, prompt)
    if prompt.answer == "cached":
        row["canary_share"] = None  # nothing was decoded, so it is in no comparison
    return RequestRecord(
        {"record_id": uuid4().hex, "ended_at": now, "prices_version": prices_version, **row}, now - about.age_s
    )


_RETRIES = Documents("retry", str, str)
"""Ids of answers by digest of a retry's name and the id; `by`: the tenant. Kept as long as request records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetry(QueueItem):
    """A retry that was answered with what an earlier request got: further names by which that is found."""

    kind: ClassVar[Kind] = "retry"

    answer_id: str  # id of the first request's answer
    http_request_id: str  # id of the retry; the next two fields are about the retry too
    trace_id: str | None
    tenant: str
    began_at: float = field(default_factory=time.time)

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        """Write retries; a batch with an unknown outcome can be repeated."""
        retried = {
            f"{_digest(name)} {item.answer_id}": item
            for item in items
            for name in (item.http_request_id, item.trace_id)
            if name
        }
        rows = [StoredDocument(key, item.answer_id, item.began_at, by=item.tenant) for key, item in retried.items()]
        _RETRIES.put(connection, rows)


DELETE_BATCH = 1000


def add(connection: Connection, records: Sequence[RequestRecord]) -> None:
    """Write records; existing ones stay as they are, so a batch with an unknown outcome can be repeated."""
    ids = [record.row["record_id"] for record in records]
    known = set(connection.scalars(select(request_records.c.record_id).where(request_records.c.record_id.in_(ids))))
    rows = [record.row for record in records if record.row["record_id"] not in known]
    if rows:
        connection.execute(insert(request_records), rows)
        record_chain.append_records(connection, rows)


def count(connection: Connection, before: float = math.inf) -> int:
    """Return the number of records that ended before a Unix time."""
    query = select(func.count()).select_from(request_records)
    return connection.scalar(query if before == math.inf else query.where(request_records.c.ended_at < before)) or 0


def find(connection: Connection, names: Iterable[str], limit: int) -> list[dict[str, object]]:
    """Return the records that have one of these names, in the order in which they ended."""
    given = [*names]
    has_name = or_(*(request_records.c[column].in_(given) for column in NAMES))
    query = select(request_records).where(has_name).order_by(request_records.c.ended_at).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


def answers_of_retries(connection: Connection, names: Iterable[str], limit: int) -> set[str]:
    """Return the ids of the answers that retries with one of these names got."""
    has_name = or_(*(of.begins(f"{_digest(name)} ") for name in names))
    return {retry.value for retry in _RETRIES.list(connection, has_name, limit=limit)}


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "replace")).hexdigest()


def prune(database: Database, before: float) -> int:
    """Delete the records that ended before a Unix time; returns their number. Raises `StoreUnavailable`."""
    with database.write() as connection:
        _RETRIES.remove(connection, of.at < before)
    return _delete(database, request_records.c.ended_at < before)


def forget(database: Database, tenant: str) -> int:
    """Delete a tenant's records; returns their number. Raises `StoreUnavailable`."""
    with database.write() as connection:
        _RETRIES.remove(connection, of.by == tenant)
    return _delete(database, request_records.c.tenant == tenant)


def _delete(database: Database, which: ColumnElement[bool]) -> int:
    """Delete in short transactions, so that writers need not wait."""
    some = select(request_records.c.record_id).where(which).limit(DELETE_BATCH)

    def delete_some(connection: Connection) -> int:
        record_ids = list(connection.scalars(some))
        record_chain.append_deletion(connection, record_ids)
        connection.execute(delete(request_records).where(request_records.c.record_id.in_(record_ids)))
        return len(record_ids)

    return database.repeat(delete_some)
