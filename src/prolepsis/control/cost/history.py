"""The history of costs in the store: price books, so that past requests keep their prices, and device time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from uuid import uuid4

from sqlalchemy import Connection, delete, insert, select

from prolepsis.control.cost.device_time import DeviceCost, DeviceTime
from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.tables import cost_periods


@dataclass(frozen=True, slots=True)
class StoredPrices:
    """A price book in the history. Numbers count up from 1; a version that comes into use again gets a new one."""

    number: int
    version: str  # version of the book's content; request records name it
    content: str  # JSON
    taken_at: float  # Unix time in seconds


_PRICES = Documents.of("prices", StoredPrices)


def store_prices(connection: Connection, version: str, content: str) -> StoredPrices:
    """Store a book that is in use from now on, unless it is the newest already."""
    while True:
        newest = next(iter(stored_prices(connection, 1)), None)
        if newest is not None and newest.version == version:
            return newest
        stored = StoredPrices(newest.number + 1 if newest else 1, version, content, time.time())
        if _PRICES.add(connection, [StoredDocument(str(stored.number), stored, stored.taken_at, stored.number)]):
            return stored  # else another replica was faster


def stored_prices(connection: Connection, limit: int) -> list[StoredPrices]:
    """Return the price books, newest first."""
    return [document.value for document in _PRICES.list(connection, order=of.version.desc(), limit=limit)]


def store_periods(connection: Connection, replica: str, periods: Sequence[DeviceCost]) -> None:
    """Store periods of a server, each in place of what is there of it: a period grows until it is over."""
    of = cost_periods.c
    by_start = {period.started_at: period for period in periods}
    connection.execute(delete(cost_periods).where(of.replica == replica, of.started_at.in_(by_start)))
    connection.execute(insert(cost_periods), [{"replica": replica, **asdict(period)} for period in by_start.values()])


def stored_periods(connection: Connection, limit: int) -> list[DeviceCost]:
    """Return the periods of all servers, the one that ended last first."""
    columns = [cost_periods.c[field.name] for field in fields(DeviceCost)]
    query = select(*columns).order_by(cost_periods.c.ended_at.desc()).limit(limit)
    return [DeviceCost(**row) for row in connection.execute(query).mappings()]


KEPT_EVERY_S = 60.0  # the store has the period that is not over yet up to so many seconds ago


class PeriodKeeper:
    """Saves the periods of a server that are over, and now and then the one that is not."""

    def __init__(self, database: Database, device_time: DeviceTime, clock: Callable[[], float]) -> None:
        self._database = database
        self._device_time = device_time
        self._clock = clock
        self._replica = uuid4().hex
        self._saved: DeviceCost | None = None
        """The last period that is in the store, and is over."""
        self._kept_at = clock()
        """When the period that is not over was saved."""

    async def keep(self) -> None:
        """Save what is due; an unavailable database is tried again the next time."""
        closed, is_due = self._device_time.closed, self._clock() - self._kept_at >= KEPT_EVERY_S
        unsaved = closed[closed.index(self._saved) + 1 :] if self._saved in closed else closed
        if not (unsaved or is_due):
            return
        with suppress(Exception):  # contained: the writer reports an unavailable database
            await asyncio.to_thread(self._put, [*unsaved, *([self._device_time.current()] if is_due else [])])
            self._saved = unsaved[-1] if unsaved else self._saved
            self._kept_at = self._clock() if is_due else self._kept_at

    def _put(self, periods: Sequence[DeviceCost]) -> None:
        with self._database.write() as connection:
            store_periods(connection, self._replica, periods)
