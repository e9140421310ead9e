"""Price books in the order they were in use."""

import threading
from collections.abc import Callable

from prolepsis.cost import price_history as prices
from prolepsis.store.database import Database


def test_a_book_is_kept_when_another_was_in_use_before(database: Database) -> None:
    with database.write() as connection:
        first = prices.put(connection, "a@1", '{"currency": "EUR"}')
        assert prices.put(connection, "a@1", '{"currency": "EUR"}') == first
        prices.put(connection, "b@2", "{}")
        again = prices.put(connection, "a@1", '{"currency": "EUR"}')
    assert (first.number, again.number) == (1, 3)
    with database.read() as connection:
        assert [book.version for book in prices.history(connection, 10)] == ["a@1", "b@2", "a@1"]
        assert prices.history(connection, 1) == [again]


def test_replicas_that_start_at_once_keep_their_book_once(connect: Callable[[], Database]) -> None:
    start = threading.Barrier(4)
    numbers: list[int] = []

    def keep(database: Database) -> None:
        start.wait()
        with database.write() as connection:
            numbers.append(prices.put(connection, "a@1", "{}").number)

    threads = [threading.Thread(target=keep, args=(connect(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [1, 1, 1, 1]
