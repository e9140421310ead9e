"""Tenants that were forgotten: what their requests from before come to is not written any more."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import TypeVar

from sqlalchemy import Connection, delete, select

from prolepsis.control.store.database import Database, hold
from prolepsis.control.store.queue import QueueItem
from prolepsis.control.store.replicas import PeriodicWork
from prolepsis.control.store.tables import allowances, turns

Item = TypeVar("Item", bound=QueueItem)


def note(database: Database, tenant: str) -> None:
    """Note that a tenant is forgotten now, by a digest of its name; raises `StoreUnavailable`."""
    PeriodicWork(database).take(_work(tenant), 0.0)
    with database.write() as connection:
        hold(connection, _work(tenant))  # writers that did not see it have ended
        owners = f"tenant:{tenant}", f"background:{tenant}"
        connection.execute(delete(allowances).where(allowances.c.owner.in_(owners)))


def is_forgotten(connection: Connection, tenant: str, began_at: float) -> bool:
    """Return whether a tenant was forgotten since a Unix time."""
    return began_at <= _times(connection, [tenant]).get(_work(tenant), 0.0)


def not_forgotten(connection: Connection, items: Sequence[Item]) -> list[Item]:
    """Return the items but those of tenants that were forgotten since they began."""
    times = _times(connection, {item.tenant for item in items if item.tenant})
    return [item for item in items if item.began_at > times.get(_work(item.tenant), 0.0)]


def _times(connection: Connection, tenants: Iterable[str]) -> dict[str, float]:
    """Return when tenants were forgotten; none of them is until the transaction ends."""
    works = [_work(tenant) for tenant in tenants]
    hold(connection, *works)
    found = connection.execute(select(turns.c.work, turns.c.taken_at).where(turns.c.work.in_(works)))
    return {row.work: row.taken_at for row in found}


def _work(tenant: str) -> str:
    return f"forget {sha256(tenant.encode('utf-8', 'replace')).hexdigest()}"
