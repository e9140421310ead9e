"""States of rollouts by compare-and-swap."""

from collections.abc import Callable

import pytest

from prolepsis.core.errors import StoreConflict
from prolepsis.rollout import stored as rollouts
from prolepsis.rollout.stored import StoredState
from prolepsis.store.database import Database


def test_states_follow_each_other_with_their_events(database: Database) -> None:
    with database.write() as connection:
        assert rollouts.load(connection, "r") is None
        rollouts.swap(connection, StoredState("r", 0, "{}"))
        rollouts.swap(connection, StoredState("r", 1, '{"phase":"running"}'), ["started", "promoted"])
        rollouts.swap(connection, StoredState("other", 4, "{}"), ["resumed"])
    with database.read() as connection:
        assert rollouts.load(connection, "r") == StoredState("r", 1, '{"phase":"running"}')
        assert {state.rollout_id for state in rollouts.load_all(connection)} == {"r", "other"}
        assert rollouts.events(connection, "r") == ["started", "promoted"]


def test_of_two_replicas_at_one_state_the_second_is_told(connect: Callable[[], Database]) -> None:
    ours, theirs = connect(), connect()
    with ours.write() as connection:
        rollouts.swap(connection, StoredState("r", 3, "{}"))
    with theirs.write() as connection:
        rollouts.swap(connection, StoredState("r", 4, '{"by":"them"}'), ["held"])
    for version in (3, 4, 6):
        with pytest.raises(StoreConflict, match=f"at version 4; version {version}"), ours.write() as connection:
            rollouts.swap(connection, StoredState("r", version, '{"by":"us"}'), ["rolled back"])
    with ours.read() as connection:
        assert rollouts.load(connection, "r") == StoredState("r", 4, '{"by":"them"}')
        assert rollouts.events(connection, "r") == ["held"]
