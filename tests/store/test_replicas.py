"""The servers of a store: who keeps its row alive is there, who does not ages out."""

from collections.abc import Callable

from prolepsis.store.database import Database
from prolepsis.store.replicas import FORGOTTEN_S, ReplicaTable
from tests.store.test_turns import Clock


def test_replicas_are_seen_until_they_leave_or_are_forgotten(connect: Callable[[], Database]) -> None:
    clock = Clock()
    first, second = (ReplicaTable(connect(), now=clock) for _ in range(2))
    first.keep("a", "old")
    clock.now += 5.0
    second.keep("b", "{}")
    clock.now += 5.0
    seen = first.keep("a", "new")
    assert [(one.replica, one.facts, one.started_at, one.seen_s_ago) for one in seen] == [
        ("a", "new", 1000.0, 0.0),
        ("b", "{}", 1005.0, 5.0),
    ]
    second.leave("b")
    second.keep("c", "{}")
    assert [one.replica for one in first.keep("a", "new")] == ["a", "c"]
    clock.now += FORGOTTEN_S + 1.0
    assert [one.replica for one in first.keep("a", "new")] == ["a"]
