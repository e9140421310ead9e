"""An allowance in the store: replicas lease parts of it, and never more than there is."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import func, select

from prolepsis.control.store.allowances import AllowanceKey, AllowanceTable, Lease, LeaseRequest
from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import allowances
from tests.control.store.test_replicas import Clock

Connect = Callable[[], Database]
ACME: AllowanceKey = ("tokens", "tenant:acme")
BANK: AllowanceKey = ("requests", "tenant:bank")


def test_leases_add_up_to_what_is_there_and_what_comes(connect: Connect) -> None:
    clock = Clock()
    first, second = (AllowanceTable(connect(), now=clock) for _ in range(2))
    assert first.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(40.0, 20.0)}
    assert second.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(20.0, 0.0)}
    clock.now += 10.0
    assert second.lease({ACME: LeaseRequest(60.0, 0.0, 40.0)}) == {ACME: Lease(10.0, 0.0)}
    assert first.lease({ACME: LeaseRequest(60.0, 30.0, 0.0)}) == {ACME: Lease(0.0, 30.0)}
    both = first.lease({ACME: LeaseRequest(60.0, 500.0, 0.0), BANK: LeaseRequest(6.0, 0.0, 9.0)})
    assert both == {ACME: Lease(0.0, 60.0), BANK: Lease(6.0, 0.0)}


def test_a_full_allowance_needs_no_row(connect: Connect) -> None:
    clock, database = Clock(), connect()
    table = AllowanceTable(database, now=clock)
    table.lease({ACME: LeaseRequest(60.0, 0.0, 60.0)})
    clock.now += 61.0
    table.lease({BANK: LeaseRequest(60.0, 0.0, 1.0)})
    with database.read() as connection:
        assert connection.scalar(select(func.count()).select_from(allowances)) == 1
    assert table.lease({ACME: LeaseRequest(60.0, 0.0, 60.0)}) == {ACME: Lease(60.0, 0.0)}


def test_replicas_that_lease_at_once_get_no_more_together(connect: Connect) -> None:
    clock = Clock()
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
