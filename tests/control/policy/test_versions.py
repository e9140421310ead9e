"""Versions of the policy, and two changes at once."""

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import pytest

from prolepsis.control.policy import versions
from prolepsis.control.policy.versions import PolicyText
from prolepsis.control.store.database import Database
from prolepsis.core.errors import InvalidParameter, StoreConflict
from tests.waiting import at_once


def test_versions_count_up_and_stay(database: Database) -> None:
    with database.write() as connection:
        assert versions.current(connection) is None
        first = versions.put(
            connection, "default: {mode: off}", author="ann", reason="start", expect=versions.NO_VERSION
        )
        second = versions.put(connection, "default: {mode: on}", author="bob", expect=first.version)
        assert (first.version, second.version) == (1, 2)
        assert versions.put(connection, first.text, author="bob", reason="as version 1", expect=2).version == 3
    with database.read() as connection:
        current = versions.current(connection)
        assert current is not None
        assert (current.version, current.text, current.digest) == (3, first.text, first.digest)
        assert versions.get(connection, 1) == first
        assert [version.reason for version in versions.history(connection, 10)] == ["as version 1", "", "start"]
        with pytest.raises(InvalidParameter, match="1 to 3"):
            versions.get(connection, 7)


def test_a_change_of_an_old_version_is_refused_with_the_author_of_the_new_one(database: Database) -> None:
    with database.write() as connection:
        versions.put(connection, "a", author="ann", expect=versions.NO_VERSION)
    with pytest.raises(StoreConflict, match="version 1 by ann, not version 0"), database.write() as connection:
        versions.put(connection, "b", author="bob", expect=versions.NO_VERSION)
    with database.read() as connection:
        assert [version.author for version in versions.history(connection, 10)] == ["ann"]


def test_one_of_several_simultaneous_policy_changes_wins(connect: Callable[[], Database]) -> None:
    outcomes: list[str] = []

    def change(author: str, database: Database) -> None:
        try:
            with database.write() as connection:
                versions.put(connection, f"by {author}", author=author, expect=versions.NO_VERSION)
            outcomes.append(author)
        except StoreConflict:
            outcomes.append("conflict")

    at_once(*(partial(change, name, connect()) for name in "abcd"))
    [winner] = [outcome for outcome in outcomes if outcome != "conflict"]
    assert len(outcomes) == 4
    with connect().read() as connection:
        [stored] = versions.history(connection, 10)
        assert (stored.version, stored.author) == (1, winner)
        assert versions.current(connection) == PolicyText(**asdict(stored), text=f"by {winner}")
