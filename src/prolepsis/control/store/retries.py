"""Retries that were answered with what an earlier request got: further names by which that request is found."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Self
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, delete, insert, or_, select

from prolepsis.control.store.database import Database
from prolepsis.control.store.queue import Kind, QueueItem
from prolepsis.control.store.tables import request_retries


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetry(QueueItem):
    """One row of `request_retries`."""

    kind: ClassVar[Kind] = "retry"

    answer_id: str
    """Id of the first request's answer."""
    http_request_id: str
    """Id of the retry; the next two fields are about the retry too."""
    trace_id: str | None
    tenant: str
    retried_at: float = field(default_factory=time.time)
    retry_id: str = field(default_factory=lambda: uuid4().hex)

    @property
    def began_at(self) -> float:
        return self.retried_at

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        """Write retries; existing ones stay as they are, so a batch with an unknown outcome can be repeated."""
        ids = request_retries.c.retry_id
        known = set(connection.scalars(select(ids).where(ids.in_([item.retry_id for item in items]))))
        rows = [asdict(item) for item in items if item.retry_id not in known]
        if rows:
            connection.execute(insert(request_retries), rows)


def answer_ids(connection: Connection, names: Iterable[str], limit: int) -> set[str]:
    """Return the ids of the answers that retries with one of these names got."""
    given, of = list(names), request_retries.c
    has_name = or_(of.http_request_id.in_(given), of.trace_id.in_(given))
    return set(connection.scalars(select(of.answer_id).where(has_name).distinct().limit(limit)))


def prune(database: Database, before: float) -> None:
    """Delete the retries that came before a Unix time; raises `StoreUnavailable`."""
    _delete(database, request_retries.c.retried_at < before)


def forget(database: Database, tenant: str) -> None:
    """Delete the retries of a tenant; raises `StoreUnavailable`."""
    _delete(database, request_retries.c.tenant == tenant)


def _delete(database: Database, which: ColumnElement[bool]) -> None:
    with database.write() as connection:
        connection.execute(delete(request_retries).where(which))
