"""Which database a setting names, and turns of writers: the kill switch does not wait for those of others."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prolepsis.control.store.controls import Control, ControlTable, control_key
from prolepsis.control.store.database import Database, WriteTurns, store_url
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError, StoreUnavailable
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


def test_auto_is_a_file_in_the_data_directory_and_none_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    url = store_url("auto")
    assert url is not None
    assert url.database == str(tmp_path / "store.sqlite")
    assert store_url("none") is None
    assert not list(tmp_path.iterdir())


def test_postgresql_is_reached_through_psycopg() -> None:
    url = store_url("postgresql://ann:secret@db.example/prolepsis")
    assert url is not None
    assert url.render_as_string(hide_password=True) == "postgresql+psycopg://ann:***@db.example/prolepsis"


@pytest.mark.parametrize("text", ["", "store.db", "sqlite://", "sqlite:///:memory:", "mysql://root:secret@host/x"])
def test_other_settings_are_refused_without_showing_a_password(text: str) -> None:
    with pytest.raises(ConfigError, match="sqlite:///FILE") as caught:
        store_url(text)
    assert "secret" not in str(caught.value)


def test_a_shown_configuration_has_no_password() -> None:
    config = ServerConfig(store="postgresql://ann:secret@db.example/prolepsis")
    assert config.model_dump(mode="json")["store"] == "postgresql://ann:***@db.example/prolepsis"
    assert config.store.count("secret") == 1
