"""Keeps what features learn from traffic in the store: a restart continues with it, and replicas share it."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

import structlog
from sqlalchemy import Connection, Table, delete, select, tuple_

from prolepsis.core.config import DAY_S
from prolepsis.core.errors import StoreUnavailable
from prolepsis.store.database import Database, insert_or_update

KEEP_EVERY_S = 60.0
"""Seconds between two writes of what was learned."""
_KEPT_S = 90 * DAY_S  # after a row was written last

Place = tuple[str, str, str]
"""The primary key of a row."""
Value = TypeVar("Value")

log = structlog.get_logger(__name__)


class LearnedTable:
    """Texts by place: a table of three key columns, `state` and `kept_at`. The replica that writes last is kept.

    Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop.
    """

    def __init__(self, database: Database, table: Table, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._table = table
        self._clock = clock
        self._key = list(table.primary_key)
        self._written: dict[Place, tuple[str, float]] = {}
        """Texts as they were last read or written, and when they were written."""

    def read(self) -> Mapping[Place, str]:
        """Return all texts, the last written last."""
        of = self._table.c
        with self._database.read() as connection:
            rows = connection.execute(select(*self._key, of.state, of.kept_at).order_by(of.kept_at)).all()
        written: dict[Place, tuple[str, float]] = {(row[0], row[1], row[2]): (row[3], row[4]) for row in rows}
        self._written |= written
        return {place: text for place, (text, _) in written.items()}

    def write(self, texts: Mapping[Place, str], *, complete: str | None = None) -> None:
        """Keep what changed since the last write, and delete what is old.

        `complete`: rows whose key begins so are deleted if `texts` lacks them. Those that it has may stay as they are
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
            old = self._table.c.kept_at < now - _KEPT_S
            connection.execute(delete(self._table).where(tuple_(*self._key).in_(gone) | old))
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
        put = insert_or_update(connection, self._table)
        new = {"state": put.excluded.state, "kept_at": put.excluded.kept_at}
        connection.execute(put.on_conflict_do_update(index_elements=self._key, set_=new), rows)


class LearnedStore(Protocol[Value]):
    """Stores all that one feature learned, from a thread. Each call may raise `StoreUnavailable`."""

    def read(self) -> Value: ...

    def write(self, learned: Value, /) -> None: ...


class Keeper(Generic[Value]):
    """Restores what earlier runs learned, as soon as the store has it, and keeps what this one learns.

    Belongs to one event loop. A store that is away is logged once, and so is its return.
    """

    def __init__(
        self,
        feature: str,
        store: LearnedStore[Value] | None,
        *,
        restore: Callable[[Value], None],
        learned: Callable[[], Value],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`feature`: for logs. `store`: None: what is learned ends with the server."""
        self._feature = feature
        self._store = store
        self._restore = restore
        self._learned = learned
        self._clock = clock
        self._kept_at = clock()
        self._is_restored = False
        self._is_away = False

    async def tick(self) -> None:
        """Read what earlier runs learned, and keep what this one does, when that is due."""
        if self._store is None:
            return
        if not self._is_restored:
            await self._read(self._store)
        elif self._clock() - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = self._clock()
            await self._write(self._store)

    async def close(self) -> None:
        """Keep what was learned for the next start."""
        if self._store is not None and self._is_restored:
            await self._write(self._store)

    async def _read(self, store: LearnedStore[Value]) -> None:
        with self._logged():
            self._restore(await asyncio.to_thread(store.read))
            self._is_restored = True

    async def _write(self, store: LearnedStore[Value]) -> None:
        with self._logged():
            await asyncio.to_thread(store.write, self._learned())

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            if not self._is_away:
                log.error("store_failed", feature=self._feature, error=str(error))
            self._is_away = True
        else:
            if self._is_away:
                log.info("store_is_back", feature=self._feature)
            self._is_away = False
