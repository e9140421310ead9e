"""Writers of one process take turns, and the kill switch does not wait for those of others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from prolepsis.control.store.controls import Control, ControlTable, control_key
from prolepsis.control.store.database import Database, WriteTurns
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable
from prolepsis.core.errors import StoreUnavailable
from tests.control.store.test_batches import file
from tests.waiting import wait_for


def test_urgent_writers_come_first_and_others_in_their_order() -> None:
    turns, order = WriteTurns("sqlite"), list[str]()

    def take(name: str) -> None:
        with turns.turn(urgent=name == "kill"):
            order.append(name)

    with ThreadPoolExecutor(4) as threads, turns.turn():
        for number, name in enumerate(("one", "two", "kill"), 1):
            threads.submit(take, name)
            wait_for(lambda number=number: len(turns._waiting) == number)  # type: ignore[misc]
    assert order == ["kill", "one", "two"]


def test_a_turn_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prolepsis.control.store.database.LOCK_WAIT_S", 0.01)
    turns = WriteTurns("sqlite")
    with ThreadPoolExecutor(1) as threads, turns.turn(), pytest.raises(StoreUnavailable, match="come first"):
        threads.submit(turns.turn().__enter__).result()
    with turns.turn():
        pass


def test_the_kill_switch_waits_for_one_small_transaction_of_an_upload(database: Database) -> None:
    """An upload of many parts goes on until the switch, which comes while it is at work, has been written."""
    controls, written, given = ControlTable(database), threading.Event(), threading.Event()

    def parts() -> Iterator[bytes]:
        for _ in range(500):
            given.set()
            yield bytes(PART_BYTES)
            if written.is_set():
                return

    with ThreadPoolExecutor(4) as threads:
        uploads = [threads.submit(FileTable(database).put, file(f"file-{i}"), parts()) for i in range(3)]
        given.wait(20.0)
        controls.put({control_key("kill", "everything"): Control("on", 1.0)})
        written.set()
        assert all(upload.result() for upload in uploads)
        with database.read() as connection:
            parts_left = connection.exec_driver_sql("SELECT count(*) FROM file_parts").scalar_one()
    assert parts_left < 3 * 100
