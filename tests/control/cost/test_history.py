"""Price books in the order they were in use."""

import threading
from collections.abc import Callable

from prolepsis.control.cost.history import store_prices, stored_prices
from prolepsis.control.store.database import Database
from tests.waiting import ended


def test_a_book_is_kept_when_another_was_in_use_before(database: Database) -> None:
    with database.write() as connection:
        first = store_prices(connection, "a@1", '{"currency": "EUR"}')
        assert store_prices(connection, "a@1", '{"currency": "EUR"}') == first
        store_prices(connection, "b@2", "{}")
        again = store_prices(connection, "a@1", '{"currency": "EUR"}')
    assert (first.number, again.number) == (1, 3)
    with database.read() as connection:
        assert [book.version for book in stored_prices(connection, 10)] == ["a@1", "b@2", "a@1"]
        assert stored_prices(connection, 1) == [again]


def test_replicas_that_start_at_once_keep_their_book_once(connect: Callable[[], Database]) -> None:
    start = threading.Barrier(4)
    numbers: list[int] = []

    def keep(database: Database) -> None:
        start.wait()
        with database.write() as connection:
            numbers.append(store_prices(connection, "a@1", "{}").number)

    threads = [threading.Thread(target=keep, args=(connect(),), daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    ended(*threads)
    assert numbers == [1, 1, 1, 1]
