"""The servers of a store: a row that is kept alive stays, any other ages out; work is done by one of them."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import Connection

from prolepsis.control.store.database import Database
from prolepsis.control.store.replicas import FORGOTTEN_S, PeriodicWork, ReplicaTable

Connect = Callable[[], Database]


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self, _: Connection) -> float:
        return self.now


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


def test_one_of_all_replicas_takes_a_turn_and_the_next_when_it_is_due(connect: Connect) -> None:
    clock = Clock()
    first, second = (PeriodicWork(connect(), now=clock) for _ in range(2))
    assert (first.take("prune", 60.0), second.take("prune", 60.0)) == (True, False)
    assert second.take("anchor", 60.0), "another work has turns of its own"
    clock.now += 59.0
    assert not first.take("prune", 60.0)
    clock.now += 1.0
    assert (second.take("prune", 60.0), first.take("prune", 60.0)) == (True, False)


def test_work_that_failed_is_left_to_the_next(connect: Connect) -> None:
    first, second = PeriodicWork(connect()), PeriodicWork(connect())
    assert first.take("prune", 3600.0)
    first.give_back("prune")
    assert second.take("prune", 3600.0)


def test_replicas_that_ask_at_once_do_not_all_get_it(connect: Connect) -> None:
    replicas = [PeriodicWork(connect()) for _ in range(4)]
    with ThreadPoolExecutor(len(replicas)) as threads:
        for work in range(5):
            jobs = [threads.submit(one.take, f"work {work}", 3600.0) for one in replicas]
            assert sorted(job.result(30) for job in jobs) == [False, False, False, True]
