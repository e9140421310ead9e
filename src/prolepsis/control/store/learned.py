"""State learned from traffic, in the store: a restart continues with it, and replicas share it."""

import time
from collections.abc import Callable, Mapping, Sequence

from sqlalchemy import Connection, delete, select, tuple_

from prolepsis.control.store.database import Database, insert_or_update
from prolepsis.control.store.tables import learned
from prolepsis.core.config import DAY_S

_KEPT_S = 90 * DAY_S  # after a row was written last

Place = tuple[str, str, str, str]
"""The primary key of a row: kind, proposer, traffic class and version."""


class LearnedTable:
    """Texts by place. The replica that writes last is kept.

    Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._key = list(learned.primary_key)
        self._written: dict[Place, tuple[str, float]] = {}
        """Texts as they were last read or written, and when they were written."""

    def read(self) -> Mapping[Place, str]:
        """Return all texts, the last written last."""
        of = learned.c
        with self._database.read() as connection:
            rows = connection.execute(select(*self._key, of.state, of.kept_at).order_by(of.kept_at)).all()
        texts: dict[Place, str] = {(row[0], row[1], row[2], row[3]): row.state for row in rows}
        self._written |= {place: (row.state, row.kept_at) for place, row in zip(texts, rows, strict=True)}
        return texts

    def write(self, texts: Mapping[Place, str], *, complete: str | None = None) -> None:
        """Keep what changed since the last write, and delete what is old.

        `complete`: rows of this kind are deleted if `texts` lacks them. Those that it has may stay as they are
        for longer than old rows are kept, so they are written again in time.
        """
        now, names = self._clock(), [column.name for column in self._key]
        changed = {
            place: text
            for place, text in texts.items()
            if self._is_due(place, text, now - _KEPT_S / 2 if place[0] == complete else 0.0)
        }
        gone = [place for place in self._written if place[0] == complete and place not in texts]
        if not changed and not gone:
            return
        rows = [  # in one order, or two replicas would wait for each other
            dict(zip(names, place, strict=True), state=text, kept_at=now) for place, text in sorted(changed.items())
        ]
        with self._database.write() as connection:
            old = learned.c.kept_at < now - _KEPT_S
            connection.execute(delete(learned).where(tuple_(*self._key).in_(gone) | old))
            self._put(connection, rows)
        stay = {place: written for place, written in self._written.items() if place not in gone}
        self._written = stay | {place: (text, now) for place, text in changed.items()}

    def _is_due(self, place: Place, text: str, oldest: float) -> bool:
        written, at = self._written.get(place, (None, 0.0))
        return written != text or at < oldest

    def _put(self, connection: Connection, rows: Sequence[Mapping[str, object]]) -> None:
        """Insert rows or replace them in place: a row that another replica inserts meanwhile is not a conflict."""
        if not rows:
            return
        put = insert_or_update(connection, learned)
        new = {"state": put.excluded.state, "kept_at": put.excluded.kept_at}
        connection.execute(put.on_conflict_do_update(index_elements=self._key, set_=new), rows)
