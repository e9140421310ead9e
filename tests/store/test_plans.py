"""Versions of the plan, and two who change it at once."""

import threading
from collections.abc import Callable

import pytest

from prolepsis.core.errors import InvalidParameter, StoreConflict
from prolepsis.policy import versions as plans
from prolepsis.store.database import Database


def test_versions_count_up_and_stay(database: Database) -> None:
    with database.write() as connection:
        assert plans.current(connection) is None
        first = plans.put(connection, "default: {mode: off}", author="ann", note="start", over=plans.NO_PLAN)
        second = plans.put(connection, "default: {mode: on}", author="bob", over=first.version)
        assert (first.version, second.version) == (1, 2)
        assert plans.put(connection, first.text, author="bob", note="as version 1", over=2).version == 3
    with database.read() as connection:
        current = plans.current(connection)
        assert current is not None
        assert (current.version, current.text, current.digest) == (3, first.text, first.digest)
        assert plans.get(connection, 1) == first
        assert [version.note for version in plans.history(connection, 10)] == ["as version 1", "", "start"]
        with pytest.raises(InvalidParameter, match="1 to 3"):
            plans.get(connection, 7)


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
