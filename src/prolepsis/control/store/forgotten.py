"""Tenants that were forgotten: what their requests from before come to is not written any more."""

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

from sqlalchemy import Connection, delete, select

from prolepsis.control.store.database import Database, hold
from prolepsis.control.store.queue import Begun
from prolepsis.control.store.replicas import PeriodicWork
from prolepsis.control.store.tables import allowances, turns

Item = TypeVar("Item", bound=Begun)


def note(database: Database, tenant: str) -> None:
    """Note that a tenant is forgotten now, by a digest of its name; raises `StoreUnavailable`."""
    PeriodicWork(database).take(_work(tenant), 0.0)
    with database.write() as connection:
        hold(connection, _work(tenant))  # writers that did not see it have ended
        owners = f"tenant:{tenant}", f"background:{tenant}"
        connection.execute(delete(allowances).where(allowances.c.owner.in_(owners)))


def not_forgotten(connection: Connection, items: Sequence[Item]) -> list[Item]:
    """Return the items but those of tenants forgotten since they began; none is until the transaction ends."""
    works = {_work(item.tenant) for item in items if item.tenant}
    hold(connection, *works)
    found = connection.execute(select(turns.c.work, turns.c.taken_at).where(turns.c.work.in_(works)))
    times = {row.work: row.taken_at for row in found}
    return [item for item in items if item.began_at > times.get(_work(item.tenant), 0.0)]


def _work(tenant: str) -> str:
    return f"forget {sha256(tenant.encode('utf-8', 'replace')).hexdigest()}"
