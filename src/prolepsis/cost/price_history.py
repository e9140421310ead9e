"""The history of price books in the store, so that past requests keep the prices of their time."""

import time
from dataclasses import asdict, dataclass

from sqlalchemy import Connection, insert, select
from sqlalchemy.exc import IntegrityError

from prolepsis.store.tables import price_books


@dataclass(frozen=True, slots=True)
class StoredPrices:
    """A book in the history. Numbers count up from 1; a version that comes into use again gets a new one."""

    number: int
    version: str
    """Of the book's content; request records name it."""
    content: str
    """JSON."""
    taken_at: float
    """Unix time in seconds."""


def put(connection: Connection, version: str, content: str) -> StoredPrices:
    """Store a book that is in use from now on, unless it is the newest already."""
    while True:
        newest = next(iter(history(connection, 1)), None)
        if newest is not None and newest.version == version:
            return newest
        stored = StoredPrices(newest.number + 1 if newest else 1, version, content, time.time())
        try:
            with connection.begin_nested():
                connection.execute(insert(price_books), [asdict(stored)])
        except IntegrityError:  # another replica was faster
            continue
        return stored


def history(connection: Connection, limit: int) -> list[StoredPrices]:
    """Return the books, the newest first."""
    query = select(price_books).order_by(price_books.c.number.desc()).limit(limit)
    return [StoredPrices(**row) for row in connection.execute(query).mappings()]
