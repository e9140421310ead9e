"""States of rollouts, exchanged by compare-and-swap, their events, and what replicas saw; all of it is opaque here."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Select, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from prolepsis.core.errors import StoreConflict
from prolepsis.store.tables import rollout_events, rollout_evidence, rollout_states


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


def keep_evidence(connection: Connection, replica: str, evidence: Mapping[str, str]) -> None:
    """Keep what a replica saw (JSON by rollout), in place of what it kept of these rollouts before."""
    of = rollout_evidence.c
    connection.execute(delete(rollout_evidence).where(of.replica == replica, of.rollout_id.in_(list(evidence))))
    now = time.time()
    rows = [
        {"rollout_id": rollout_id, "replica": replica, "evidence": text, "kept_at": now}
        for rollout_id, text in evidence.items()
    ]
    if rows:
        connection.execute(insert(rollout_evidence), rows)


def evidence_beside(connection: Connection, replica: str) -> list[str]:
    """Return what all other replicas kept (JSON), of every rollout."""
    of = rollout_evidence.c
    query = select(of.evidence).where(of.replica != replica).order_by(of.rollout_id, of.replica)
    return list(connection.scalars(query))


def drop_evidence(connection: Connection, rollout_id: str) -> None:
    """Drop what all replicas kept of a rollout."""
    connection.execute(delete(rollout_evidence).where(rollout_evidence.c.rollout_id == rollout_id))


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
