"""Turns: work that one of the replicas does for all, and tenants that were forgotten, whose requests write no more."""

from collections.abc import Sequence
from hashlib import sha256
from typing import TypeVar

from sqlalchemy import Connection

from prolepsis.control.store import documents as of
from prolepsis.control.store.allowances import ALLOWANCES, allowance_name
from prolepsis.control.store.database import Database, StoreTable, hold
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.queue import Begun

Item = TypeVar("Item", bound=Begun)
_TURNS = Documents("turn", str, str)  # by work; `at`: when a replica last took it


class PeriodicWork(StoreTable):
    """Periodic work that one replica does for all: the first one that takes its turn."""

    def take(self, work: str, every_s: float) -> bool:
        """Return whether the caller does the work now: no replica has taken it for `every_s` seconds."""
        with self._database.write() as connection:
            now = self._now(connection)
            return bool(
                _TURNS.put(connection, [StoredDocument(work, "", now)], over=lambda new: of.at <= now - every_s)
            )

    def give_back(self, work: str) -> None:
        """Leave work that failed to the next replica."""
        with self._database.write() as connection:
            _TURNS.remove(connection, of.key == work)


def forget(database: Database, tenant: str) -> None:
    """Note that a tenant is forgotten now; raises `StoreUnavailable`."""
    note_forgotten(database, tenant)
    with database.write() as connection:
        owners = f"tenant:{tenant}", f"background:{tenant}"
        names = [allowance_name(kind, owner) for kind in ("requests", "tokens") for owner in owners]
        ALLOWANCES.remove(connection, of.key.in_(names))


def note_forgotten(database: Database, name: str) -> None:
    """Note that a tenant, or a name with a colon, is forgotten now, and wait for writers that did not see it."""
    PeriodicWork(database).take(_forgetting(name), 0.0)
    with database.write() as connection:
        hold(connection, _forgetting(name))


def forgotten_at(connection: Connection, name: str) -> float:
    """Return when something was forgotten last, 0 for never; that stays so until the transaction ends."""
    hold(connection, _forgetting(name))
    turn = _TURNS.get(connection, _forgetting(name))
    return turn.at if turn is not None else 0.0


def not_forgotten(connection: Connection, items: Sequence[Item]) -> list[Item]:
    """Return the items but those of tenants forgotten since they began; none is until the transaction ends."""
    works = {_forgetting(item.tenant) for item in items if item.tenant}
    hold(connection, *works)
    times = {turn.key: turn.at for turn in _TURNS.list(connection, of.key.in_(works))}
    return [item for item in items if item.began_at > times.get(_forgetting(item.tenant), 0.0)]


def _forgetting(name: str) -> str:
    return f"forget {sha256(name.encode('utf-8', 'replace')).hexdigest()}"
