"""The writer: nothing waits for it, what it cannot write is kept or counted, and it comes back by itself."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import URL

from prolepsis.control.audit import chain
from prolepsis.control.audit.log import QueuedEvent
from prolepsis.control.audit.verify import verify
from prolepsis.control.store import records
from prolepsis.control.store.database import LOCK_WAIT_S, Database, store_url
from prolepsis.control.store.writer import Writer, WriterSettings
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.store.fakes import record
from tests.waiting import wait_for

QUICK = WriterSettings(linger_s=0.01, first_retry_s=0.01, max_retry_s=0.02)


@pytest.fixture
def setting(sqlite: str) -> str:
    """How a queue is emptied is the same on PostgreSQL; `test_faults` has what is not."""
    return sqlite


@pytest.fixture
def start(connect: Callable[[], Database]) -> Iterator[Callable[..., Writer]]:
    writers: list[Writer] = []

    def make(settings: WriterSettings = QUICK, metrics: Metrics | None = None) -> Writer:
        writers.append(Writer(connect(), (metrics or Metrics()).registry, settings))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()


def num_stored(database: Database) -> tuple[int, int]:
    with database.read() as connection:
        return records.count(connection), chain.head(connection)[0]


def test_offered_items_are_on_disk_after_a_flush(start: Callable[..., Writer], database: Database) -> None:
    metrics = Metrics()
    writer = start(replace(QUICK, linger_s=60.0), metrics)
    for _ in range(5):
        assert writer.offer(record())
    assert writer.offer(QueuedEvent(AuditEvent(actor="ann", action="policy.reloaded")))
    assert writer.flush(20.0)
    assert num_stored(database) == (5, 1)
    health = writer.health()
    assert (health.ok, health.num_queued, health.dropped) == (True, 0, {})
    assert health.written == {"request": 5, "audit": 1}
    assert 'prolepsis_store_written_total{kind="request"} 5.0' in metrics.exposition().decode()


def test_acts_that_take_long_hold_up_no_other_writer(start: Callable[..., Writer], database: Database) -> None:
    made: list[int] = []

    def make(number: int) -> AuditEvent:
        started = time.monotonic()
        with database.write() as connection:  # the writer is not in a transaction meanwhile
            chain.head(connection, hold=True)
        assert time.monotonic() - started < LOCK_WAIT_S
        made.append(number)
        return AuditEvent(actor="ann", action="request.served", after="ann@example.org")

    writer = start(replace(QUICK, max_slow=2))
    for number in range(5):
        assert writer.offer(QueuedEvent(partial(make, number)))
    assert writer.flush(30.0)
    assert made == [0, 1, 2, 3, 4]
    with database.read() as connection:
        entries = list(chain.entries(connection))
    assert [entry.details.after for entry in entries if entry.details] == ["[EMAIL]"] * 5
    assert verify(entries).faults == ()


class Failing(Database):
    num_failures = 0

    def write(self, *, urgent: bool = False):  # type: ignore[no-untyped-def]
        if self.num_failures:
            self.num_failures -= 1
            raise StoreUnavailable("store test: gone")
        return super().write(urgent=urgent)


def test_an_act_is_made_once_however_often_it_is_tried_and_one_that_cannot_be_is_dropped_alone(setting: str) -> None:
    made: list[str] = []

    def make(name: str) -> AuditEvent:
        made.append(name)
        if name == "bad":
            raise ValueError("cannot be told")
        return AuditEvent(actor=name, action="a")

    url = store_url(setting)
    assert url is not None
    database = Failing(url)
    writer = Writer(database, Metrics().registry, QUICK)
    assert writer.offer(QueuedEvent(AuditEvent(actor="ann", action="a")))
    assert writer.flush(30.0)
    database.num_failures = 2
    assert writer.offer(QueuedEvent(partial(make, "good")))
    assert writer.flush(30.0)
    assert (made, database.num_failures) == (["good"], 0)
    assert writer.offer(QueuedEvent(partial(make, "bad")))
    assert writer.offer(QueuedEvent(AuditEvent(actor="ann", action="a")))
    assert writer.flush(30.0)
    assert (writer.health().written, writer.health().dropped) == ({"audit": 3}, {"audit": 1})
    writer.close()
    database.close()


def test_two_writers_share_a_database(start: Callable[..., Writer], database: Database) -> None:
    writers = [start(), start()]
    for i in range(40):
        writers[i % 2].offer(record())
        writers[i % 2].offer(QueuedEvent(AuditEvent(actor=str(i), action="a")))
    assert all(writer.flush(20.0) for writer in writers)
    assert num_stored(database) == (40, 40)


def test_an_item_that_the_database_refuses_does_not_stop_the_others(
    start: Callable[..., Writer], database: Database
) -> None:
    writer = start(replace(QUICK, linger_s=60.0))
    for one in (record(), record(num_steps=2**70), record()):
        writer.offer(one)
    assert writer.flush(20.0)
    health = writer.health()
    assert (health.ok, health.written, health.dropped) == (True, {"request": 2}, {"request": 1})
    assert num_stored(database) == (2, 0)


def test_old_records_are_deleted_while_serving(start: Callable[..., Writer], database: Database) -> None:
    with database.write() as connection:
        records.add(connection, [record(ended_at=time.time() - 100.0), record()])
    start(replace(QUICK, retention_s=50.0, maintain_every_s=0.01))
    wait_for(lambda: num_stored(database)[0] == 1)


class Gone(Database):
    """A database that is away until it is told to be back; an attempt to write fails as soon as it may."""

    away = True

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        self.asked = threading.Event()
        self.may_fail = threading.Event()
        self.may_fail.set()

    def write(self, *, urgent: bool = False):  # type: ignore[no-untyped-def]
        if self.away:
            self.asked.set()
            assert self.may_fail.wait(20.0)
            raise StoreUnavailable("store test: gone")
        return super().write(urgent=urgent)


def test_while_the_database_is_away_offers_go_on_and_what_is_lost_is_counted(empty: str) -> None:
    url = store_url(empty)
    assert url is not None
    database, metrics = Gone(url), Metrics()
    writer = Writer(database, metrics.registry, replace(QUICK, max_queued=10, max_batch=4))
    writer.offer(record())
    wait_for(lambda: not writer.health().ok)
    database.may_fail.clear()
    database.asked.clear()
    assert database.asked.wait(20.0), "from here on the writer waits for the database"
    taken = [writer.offer(record()) for _ in range(30)]
    database.may_fail.set()
    health = writer.health()
    assert health.detail == "store test: gone"
    assert health.dropped == {"request": taken.count(False)}
    assert health.num_queued == 1 + taken.count(True)
    assert 10 <= health.num_queued <= 14  # a full queue, and a batch in hand
    assert b"prolepsis_store_up 0.0" in metrics.exposition()

    database.away = False
    assert writer.flush(20.0)
    after = writer.health()
    assert (after.ok, after.dropped) == (True, health.dropped)
    assert num_stored(database) == (after.written["request"], 0) == (1 + taken.count(True), 0)
    writer.close()
    database.close()


def test_closing_drops_what_cannot_be_written_and_counts_it(empty: str) -> None:
    url = store_url(empty)
    assert url is not None
    database = Gone(url)
    writer = Writer(database, Metrics().registry, replace(QUICK, max_batch=2, first_retry_s=30.0, max_retry_s=30.0))
    for _ in range(5):
        writer.offer(record())
    writer.close(0.2)
    assert not writer.offer(record())
    assert writer.health().dropped == {"request": 6}
    assert writer.health().num_queued == 0
    database.close()


def test_closing_tries_once_more_before_it_drops(empty: str) -> None:
    url = store_url(empty)
    assert url is not None
    database = Gone(url)
    writer = Writer(database, Metrics().registry, replace(QUICK, first_retry_s=60.0, max_retry_s=60.0))
    writer.offer(record())
    wait_for(lambda: not writer.health().ok)
    database.away = False
    writer.close(20.0)
    assert (writer.health().written, writer.health().dropped) == ({"request": 1}, {})
    database.close()
