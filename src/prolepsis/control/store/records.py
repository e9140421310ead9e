"""Records of requests that have ended: figures and names, no text of prompt or answer."""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select

from prolepsis.control.store import record_chain, retries
from prolepsis.control.store.database import Database
from prolepsis.control.store.queue import Kind, QueueItem
from prolepsis.control.store.tables import NAMES, request_records
from prolepsis.core.ended import PromptEnded, RequestAbout
from prolepsis.core.request_figures import figures_of


@dataclass(frozen=True, slots=True)
class RequestRecord(QueueItem):
    """One row of `request_records`."""

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
    given = list(names)
    has_name = or_(*(request_records.c[column].in_(given) for column in NAMES))
    query = select(request_records).where(has_name).order_by(request_records.c.ended_at).limit(limit)
    return [dict(row) for row in connection.execute(query).mappings()]


def prune(database: Database, before: float) -> int:
    """Delete the records that ended before a Unix time; returns their number. Raises `StoreUnavailable`."""
    retries.prune(database, before)
    return _delete(database, request_records.c.ended_at < before)


def forget(database: Database, tenant: str) -> int:
    """Delete a tenant's records; returns their number. Raises `StoreUnavailable`."""
    retries.forget(database, tenant)
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
