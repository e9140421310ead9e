"""Retries that were answered with what an earlier request got: further names by which that request is found."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import ClassVar, Self

from sqlalchemy import Connection, or_

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.queue import Kind, QueueItem

_RETRIES = Documents("retry", str, str)
"""Ids of answers by digest of a retry's name and the id; `by`: the tenant. Kept as long as request records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRetry(QueueItem):
    kind: ClassVar[Kind] = "retry"

    answer_id: str
    """Id of the first request's answer."""
    http_request_id: str
    """Id of the retry; the next two fields are about the retry too."""
    trace_id: str | None
    tenant: str
    retried_at: float = field(default_factory=time.time)

    @property
    def began_at(self) -> float:
        return self.retried_at

    @classmethod
    def write(cls, connection: Connection, items: Sequence[Self]) -> None:
        """Write retries; a batch with an unknown outcome can be repeated."""
        found = {
            f"{_digest(name)} {item.answer_id}": item
            for item in items
            for name in (item.http_request_id, item.trace_id)
            if name
        }
        rows = [StoredDocument(key, item.answer_id, item.retried_at, by=item.tenant) for key, item in found.items()]
        _RETRIES.put(connection, rows)


def answer_ids(connection: Connection, names: Iterable[str], limit: int) -> set[str]:
    """Return the ids of the answers that retries with one of these names got."""
    has_name = or_(*(of.begins(f"{_digest(name)} ") for name in names))
    return {retry.value for retry in _RETRIES.list(connection, has_name, limit=limit)}


def prune(database: Database, before: float) -> None:
    """Delete the retries that came before a Unix time; raises `StoreUnavailable`."""
    with database.write() as connection:
        _RETRIES.remove(connection, of.at < before)


def forget(database: Database, tenant: str) -> None:
    """Delete the retries of a tenant; raises `StoreUnavailable`."""
    with database.write() as connection:
        _RETRIES.remove(connection, of.by == tenant)


def _digest(name: str) -> str:
    return sha256(name.encode("utf-8", "replace")).hexdigest()
