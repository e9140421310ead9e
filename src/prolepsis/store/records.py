"""Request records in their table."""

from collections.abc import Sequence
from dataclasses import fields

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select

from prolepsis.store.database import Database
from prolepsis.store.request_record import RequestRecord
from prolepsis.store.tables import request_records

DELETED_AT_ONCE = 1000
_COLUMNS = tuple(field.name for field in fields(RequestRecord))


def add(connection: Connection, records: Sequence[RequestRecord]) -> None:
    """Write records; one that is there already is left as it is, so a batch whose end was not heard is sent again."""
    ids = [record.record_id for record in records]
    known = set(connection.scalars(select(request_records.c.record_id).where(request_records.c.record_id.in_(ids))))
    rows = [{name: getattr(r, name) for name in _COLUMNS} for r in records if r.record_id not in known]
    if rows:
        connection.execute(insert(request_records), rows)


def latest(connection: Connection, limit: int, tenant: str | None = None) -> list[RequestRecord]:
    """Return the records that ended last, the newest first."""
    query = select(request_records).order_by(request_records.c.ended_at.desc()).limit(limit)
    if tenant is not None:
        query = query.where(request_records.c.tenant == tenant)
    return [RequestRecord(**row) for row in connection.execute(query).mappings()]


def count(connection: Connection) -> int:
    return connection.scalar(select(func.count()).select_from(request_records)) or 0


def prune(database: Database, before: float) -> int:
    """Delete the records that ended before a Unix time; returns how many these were. Raises `StoreUnavailable`."""
    return _delete(database, request_records.c.ended_at < before)


def forget(database: Database, tenant: str) -> int:
    """Delete a tenant's records; returns how many these were. Raises `StoreUnavailable`."""
    return _delete(database, request_records.c.tenant == tenant)


def _delete(database: Database, which: ColumnElement[bool]) -> int:
    """Delete in transactions that are short, so that writers get in between."""
    some = select(request_records.c.record_id).where(which).limit(DELETED_AT_ONCE)
    total = 0
    while True:
        with database.write() as connection:
            deleted = connection.execute(delete(request_records).where(request_records.c.record_id.in_(some))).rowcount
        total += deleted
        if deleted < DELETED_AT_ONCE:
            return total
