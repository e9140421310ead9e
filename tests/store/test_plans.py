"""Versions of the plan, and two who change it at once."""

import threading
from collections.abc import Callable

import pytest

from prolepsis.core.errors import InvalidParameter, StoreConflict
from prolepsis.store import plans
from prolepsis.store.database import Database


def test_versions_count_up_and_can_be_taken_back(database: Database) -> None:
    with database.write() as connection:
        assert plans.current(connection) is None
        first = plans.put(connection, "default: {mode: off}", author="ann", note="start", over=plans.NO_PLAN)
        second = plans.put(connection, "default: {mode: on}", author="bob", over=first.version)
        assert (first.version, second.version) == (1, 2)
        assert plans.use(connection, 1, over=2) == first
    with database.read() as connection:
        assert plans.current(connection) == first
        assert [version.note for version in plans.history(connection, 10)] == ["", "start"]
    with database.write() as connection:
        assert plans.put(connection, "default: {mode: shadow}", author="ann", over=1).version == 3
        with pytest.raises(InvalidParameter, match="1 to 3"):
            plans.use(connection, 7, over=3)


def test_who_decided_on_an_old_version_is_told_who_was_first(database: Database) -> None:
    with database.write() as connection:
        plans.put(connection, "a", author="ann", over=plans.NO_PLAN)
    with pytest.raises(StoreConflict, match="version 1 by ann, not version 0"), database.write() as connection:
        plans.put(connection, "b", author="bob", over=plans.NO_PLAN)
    with database.read() as connection:
        assert [version.author for version in plans.history(connection, 10)] == ["ann"]


def test_of_replicas_that_change_the_plan_at_once_one_wins(connect: Callable[[], Database]) -> None:
    start = threading.Barrier(4)
    outcomes: list[str] = []

    def change(author: str, database: Database) -> None:
        start.wait()
        try:
            with database.write() as connection:
                plans.put(connection, f"by {author}", author=author, over=plans.NO_PLAN)
            outcomes.append(author)
        except StoreConflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=change, args=(name, connect())) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    [winner] = [outcome for outcome in outcomes if outcome != "conflict"]
    assert len(outcomes) == 4
    with connect().read() as connection:
        [stored] = plans.history(connection, 10)
        assert (stored.version, stored.author, plans.current(connection)) == (1, winner, stored)
