"""Work that one of the replicas of a store does, such as pruning: whoever takes its turn first does it this time."""

from collections.abc import Callable

from sqlalchemy import Connection, delete

from prolepsis.store.database import Database, database_time, insert_or_update
from prolepsis.store.tables import turns


class Turns:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

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
