"""The servers that use a store: which are there, and which of them does a piece of periodic work."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, delete, select

from prolepsis.control.store.database import Database, database_time, insert_or_update
from prolepsis.control.store.tables import replicas, turns

FORGOTTEN_S = 600.0
"""A row that no server has kept alive for so long is deleted."""


@dataclass(frozen=True, slots=True)
class SeenReplica:
    replica: str
    facts: str
    """JSON, as that server wrote it."""
    started_at: float
    """Seconds of Unix time, by the clock of the database."""
    seen_s_ago: float


class ReplicaTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database, *, now: Callable[[Connection], float] = database_time) -> None:
        self._database = database
        self._now = now

    @property
    def is_shared(self) -> bool:
        """Whether other servers may be in it."""
        return self._database.is_kept

    def keep(self, replica: str, facts: str) -> Sequence[SeenReplica]:
        """Record that a server is running; return all servers seen recently, the longest running first."""
        of = replicas.c
        with self._database.write() as connection:
            now = self._now(connection)
            put = insert_or_update(connection, replicas)
            put = put.values(replica=replica, facts=facts, started_at=now, seen_at=now)
            new = {"facts": put.excluded.facts, "seen_at": put.excluded.seen_at}
            connection.execute(put.on_conflict_do_update(index_elements=[of.replica], set_=new))
            connection.execute(delete(replicas).where(of.seen_at < now - FORGOTTEN_S))
            rows = connection.execute(select(replicas).order_by(of.started_at, of.replica)).all()
        return [SeenReplica(row.replica, row.facts, row.started_at, max(0.0, now - row.seen_at)) for row in rows]

    def leave(self, replica: str) -> None:
        """Remove a server that stops."""
        with self._database.write() as connection:
            connection.execute(delete(replicas).where(replicas.c.replica == replica))


class PeriodicWork:
    """Periodic work that one replica does for all: the first one that takes its turn.

    Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop.
    """

    def __init__(self, database: Database, *, now: Callable[[Connection], float] = database_time) -> None:
        self._database = database
        self._now = now

    def take(self, work: str, every_s: float) -> bool:
        """Return whether the caller does the work now: no replica has taken it for `every_s` seconds."""
        with self._database.write() as connection:
            now = self._now(connection)
            take = insert_or_update(connection, turns).values(work=work, taken_at=now)
            take = take.on_conflict_do_update(
                index_elements=[turns.c.work],
                set_={"taken_at": take.excluded.taken_at},
                where=turns.c.taken_at <= now - every_s,
            )
            return connection.execute(take.returning(turns.c.work)).first() is not None

    def give_back(self, work: str) -> None:
        """Leave work that failed to the next replica."""
        with self._database.write() as connection:
            connection.execute(delete(turns).where(turns.c.work == work))
