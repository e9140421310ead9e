"""What replicas share as documents: written at the same time, in place, by age, and never more than there is."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass

import pytest
from sqlalchemy import select

from prolepsis.control.store import documents as of
from prolepsis.control.store.allowances import ALLOWANCES, AllowanceKey, AllowanceTable, Lease, LeaseRequest
from prolepsis.control.store.controls import Control, ControlTable, control_key
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.learned import LearnedTable, Place
from prolepsis.control.store.tables import documents
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.core.config import DAY_S
from tests.control.store.databases import num_waiting_is, opened
from tests.control.store.fakes import DatabaseClock

Connect = Callable[[], Database]
NOTES = Documents("note", str, str)
KILL = control_key("kill", "everything")
ACME: AllowanceKey = ("tokens", "tenant:acme")
BANK: AllowanceKey = ("requests", "tenant:bank")
CHAT: Place = ("figures", "suffix", "chat", "1")
CODE: Place = ("figures", "suffix", "code", "1")
HELD: Place = ("held", "", "chat", "a digest")


@dataclass(frozen=True)
class Point:
    x: float


def test_documents_of_a_kind_are_put_added_swapped_and_removed(database: Database) -> None:
    points, first = Documents.of("point", Point), StoredDocument("a", Point(0.5), 2.0, 3, "ann")
    with database.write() as connection:
        assert points.put(connection, []) == []
        assert set(points.put(connection, [StoredDocument("b", Point(2.0), 1.0, 7), first])) == {"a", "b"}
        assert NOTES.put(connection, [StoredDocument("a", "of another kind")]) == ["a"]
        assert points.add(connection, [first, StoredDocument("c", Point(3.0))]) == ["c"]
        assert not points.swap(connection, StoredDocument("a", Point(9.0), version=5))
        assert points.swap(connection, StoredDocument("a", Point(9.0), version=4))
        assert points.swap(connection, StoredDocument("d", Point(4.0), version=5)), "the first has any version"
        older = points.put(connection, [StoredDocument("b", Point(0.0), 0.5)], over=lambda new: new.at > of.at)
        assert (older, points.remove(connection, of.key == "c", of.at == 0.0)) == ([], 1)
    with database.read() as connection:
        assert points.get(connection, "a") == StoredDocument("a", Point(9.0), 0.0, 4)
        assert points.get(connection, "c") is None
        assert [one.key for one in points.list(connection, order=of.version.desc(), limit=2)] == ["b", "d"]
        assert (points.newest_version(connection), points.count(connection), NOTES.count(connection)) == (7, 3, 1)


@pytest.mark.parametrize("prefix", ["a ", "a%", "A ", "\U0001f600"])
def test_keys_that_begin_alike_are_found_by_code_points(prefix: str, database: Database) -> None:
    keys = ["a", "a ", "a 1", "a  ", "a%", "a%b", "A 1", "ab", "b ", "\U0001f600", "\U0001f600z", "\uffff"]
    with database.write() as connection:
        NOTES.put(connection, [StoredDocument(key, "") for key in keys])
        found = [one.key for one in NOTES.list(connection, of.begins(prefix))]
    assert found == sorted(key for key in keys if key.startswith(prefix))


def test_an_older_act_that_waited_for_a_newer_one_does_not_undo_it(postgresql: str) -> None:
    """Of a control that is there, and of one that another replica makes meanwhile."""
    with ExitStack() as stack:
        ours, newer, older = (stack.enter_context(closing(opened(postgresql))) for _ in range(3))
        threads = stack.enter_context(ThreadPoolExecutor(2))
        for before in (None, Control("off", 1.0)):
            written: list[Future[object]] = []
            with ours.write() as connection:
                if before is None:
                    made = Documents.of("control", Control)
                    made.put(connection, [StoredDocument(KILL, Control("off", 1.0), 1.0)])
                else:
                    connection.execute(select(documents).with_for_update())
                for database, control in ((newer, Control("on", 3.0)), (older, Control("off", 2.0))):
                    written.append(threads.submit(ControlTable(database).put, {KILL: control}))
                    assert num_waiting_is(len(written), ours), "it waits for the row"
            assert [one.result(10) for one in written] == [{}, {}]
            assert ControlTable(ours).read()[KILL] == Control("on", 3.0)


def test_one_act_that_the_database_refuses_blocks_no_other(database: Database) -> None:
    table = ControlTable(database)
    acts = {KILL: Control("on", 1.0), "kill rule:a\x00": Control("on", 1.0), "kill rule:\udc80": Control("on", 1.0)}
    assert list(table.put(acts)) == ["kill rule:a\x00", "kill rule:\udc80"]
    assert list(table.read()) == [KILL]


def test_a_reason_is_kept_without_what_no_database_holds(database: Database) -> None:
    table = ControlTable(database)
    assert table.put({KILL: Control("on", 1.0, "\udc80", "a\x00b")}) == {}
    assert table.read() == {KILL: Control("on", 1.0, "\ufffd", "a\x00b")}


def test_controls_removed_long_ago_are_deleted(sqlite_database: Database) -> None:
    table, now = ControlTable(sqlite_database), time.time()
    for name, at in (("old", now - 91 * DAY_S), ("new", now)):
        table.exchange({control_key("flag", name): Control(None, at)})
    assert list(table.read()) == ["flag new"]


def test_leases_add_up_to_what_is_there_and_what_comes(connect: Connect) -> None:
    clock = DatabaseClock()
    first, second = (AllowanceTable(connect(), now=clock) for _ in range(2))
    assert first.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(40.0, 20.0)}
    assert second.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(20.0, 0.0)}
    clock.now += 10.0
    assert second.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(10.0, 0.0)}
    assert first.lease({ACME: LeaseRequest(60.0, 30.0, 0.0)}) == {ACME: Lease(0.0, 30.0)}
    both = first.lease({ACME: LeaseRequest(60.0, 500.0, 0.0), BANK: LeaseRequest(6.0, 0.0, 9.0)})
    assert both == {ACME: Lease(0.0, 60.0), BANK: Lease(6.0, 0.0)}


def test_a_full_allowance_needs_no_row(connect: Connect) -> None:
    clock, database = DatabaseClock(), connect()
    table = AllowanceTable(database, now=clock)
    table.lease({ACME: LeaseRequest(60.0, 0.0, 60.0)})
    clock.now += 121.0
    table.lease({BANK: LeaseRequest(60.0, 0.0, 1.0)})
    with database.read() as connection:
        assert [one.key for one in ALLOWANCES.list(connection)] == ["requests tenant:bank"]
    assert table.lease({ACME: LeaseRequest(60.0, 0.0, 60.0)}) == {ACME: Lease(60.0, 0.0)}


def test_replicas_that_lease_at_once_get_no_more_together(connect: Connect) -> None:
    clock = DatabaseClock()
    tables = [AllowanceTable(connect(), now=clock) for _ in range(4)]
    keys = [ACME, BANK]
    with ThreadPoolExecutor(len(tables)) as threads:
        jobs = [
            threads.submit(table.lease, {key: LeaseRequest(100.0, 0.0, 30.0) for key in keys[::turn]})
            for table in tables
            for turn in (1, -1)
        ]
        leases = [job.result(30) for job in jobs]
    for key in keys:
        assert sum(lease[key].amount for lease in leases) == 100.0


def test_one_of_all_replicas_takes_a_turn_and_the_next_when_it_is_due(connect: Connect) -> None:
    clock = DatabaseClock()
    first, second = (PeriodicWork(connect(), now=clock) for _ in range(2))
    assert (first.take("prune", 60.0), second.take("prune", 60.0)) == (True, False)
    assert second.take("anchor", 60.0), "another work has turns of its own"
    clock.now += 59.0
    assert not first.take("prune", 60.0)
    clock.now += 1.0
    assert (second.take("prune", 60.0), first.take("prune", 60.0)) == (True, False)
    second.give_back("prune")
    assert first.take("prune", 60.0), "work that failed is left to the next"


def test_replicas_that_ask_at_once_do_not_all_get_it(connect: Connect) -> None:
    replicas = [PeriodicWork(connect()) for _ in range(4)]
    with ThreadPoolExecutor(len(replicas)) as threads:
        for work in range(5):
            jobs = [threads.submit(one.take, f"work {work}", 3600.0) for one in replicas]
            assert sorted(job.result(30) for job in jobs) == [False, False, False, True]


def test_replicas_that_learn_in_turn_replace_each_others_rows_only(sqlite_database: Database) -> None:
    first, second = LearnedTable(sqlite_database), LearnedTable(sqlite_database)
    first.write({CHAT: "1", CODE: "1"})
    second.write({CHAT: "2"})
    first.write({CHAT: "1", CODE: "3"})
    assert LearnedTable(sqlite_database).read() == {CHAT: "2", CODE: "3"}, "unchanged texts are not written again"


def test_what_does_not_change_is_forgotten_but_not_what_a_replica_holds_complete(sqlite_database: Database) -> None:
    days = [0]
    ours, other = (LearnedTable(sqlite_database, lambda: DAY_S * days[0]) for _ in range(2))
    ours.write({CHAT: "1", HELD: "1"}, complete="held")
    for days[0] in range(0, 200, 10):
        if days[0] == 50:  # a restart
            ours = LearnedTable(sqlite_database, lambda: DAY_S * days[0])
            ours.read()
        ours.write({CHAT: "1", HELD: "1"}, complete="held")
        other.write({CODE: str(days[0])}, complete="held")
    assert LearnedTable(sqlite_database).read() == {HELD: "1", CODE: "190"}
