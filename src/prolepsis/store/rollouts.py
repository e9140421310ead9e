"""States of rollouts, exchanged by compare-and-swap, and their events; what they say is their owner's matter."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, insert, select, update
from sqlalchemy.exc import IntegrityError

from prolepsis.core.errors import StoreConflict
from prolepsis.store.tables import rollout_events, rollout_states


@dataclass(frozen=True, slots=True)
class StoredState:
    """`version` rises by one with each change; `state` is JSON."""

    rollout_id: str
    version: int
    state: str


def load(connection: Connection, rollout_id: str) -> StoredState | None:
    """Return the state as it is stored now."""
    row = connection.execute(_states().where(rollout_states.c.rollout_id == rollout_id)).mappings().first()
    return None if row is None else StoredState(**row)


def load_all(connection: Connection) -> list[StoredState]:
    """Return the states of all rollouts."""
    return [StoredState(**row) for row in connection.execute(_states()).mappings()]


def swap(connection: Connection, after: StoredState, events: Sequence[str] = ()) -> None:
    """Store a state over the one before it, with the events (JSON) that led to it.

    The first state of a rollout may have any version. Raises `StoreConflict` where the stored one is not the one before
    `after`; nothing is written then.
    """
    now = time.time()
    values = {"version": after.version, "state": after.state, "changed_at": now}
    before = (rollout_states.c.rollout_id == after.rollout_id) & (rollout_states.c.version == after.version - 1)
    if not connection.execute(update(rollout_states).where(before).values(values)).rowcount:
        _insert_first(connection, after, values)
    rows = [
        {"rollout_id": after.rollout_id, "version": after.version, "number": i, "event": event, "stored_at": now}
        for i, event in enumerate(events)
    ]
    if rows:
        connection.execute(insert(rollout_events), rows)


def events(connection: Connection, rollout_id: str) -> list[str]:
    """Return a rollout's events (JSON), the oldest first."""
    of = rollout_events.c
    query = select(of.event).where(of.rollout_id == rollout_id).order_by(of.version, of.number)
    return list(connection.scalars(query))


def _states() -> Select[str, int, str]:
    return select(rollout_states.c.rollout_id, rollout_states.c.version, rollout_states.c.state)


def _insert_first(connection: Connection, after: StoredState, values: dict[str, object]) -> None:
    try:
        with connection.begin_nested():
            connection.execute(insert(rollout_states), [{"rollout_id": after.rollout_id, **values}])
    except IntegrityError:
        stored = load(connection, after.rollout_id)
        version = stored.version if stored else "gone"
        message = f"rollout {after.rollout_id} is at version {version}; version {after.version} does not follow it"
        raise StoreConflict(message) from None
