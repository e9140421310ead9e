"""The database is taken away, filled up, and its writer killed."""

import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import event, text

from prolepsis.control.audit import chain
from prolepsis.control.audit.verify import Anchor, ChainEvidence, verify
from prolepsis.control.store import records
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.store import Store, open_store
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.store.databases import ask_server, cut_off, database_name, opened, postgresql_setting, sqlite_setting
from tests.control.store.fakes import append, record
from tests.control.store.test_writer import QUICK, num_stored
from tests.waiting import wait_for

KILLED = """
import sys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.control.store.store import open_store
from prolepsis.control.store.writer import WriterSettings
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.store.fakes import append, record

store = open_store(sys.argv[1], Metrics().registry, WriterSettings(linger_s=0.0))
while True:
    for _ in range(7):
        store.writer.offer(record())
    entry = append(store, AuditEvent(actor="ann", action="plan.applied"))
    print(entry.seq, store.writer.health().written.get("request", 0), flush=True)
"""


def started(setting: str) -> Store:
    store = open_store(setting, Metrics().registry, QUICK)
    assert store is not None
    return store


def loses_and_comes_back(store: Store, take_away: Callable[[], object], give_back: Callable[[], object]) -> None:
    """Write, lose the database, continue, and find all of it written once it is back."""
    store.writer.offer(record())
    assert store.writer.flush(20.0)
    take_away()
    for _ in range(3):
        assert store.writer.offer(record())
    wait_for(lambda: not store.writer.health().ok)
    with pytest.raises(StoreUnavailable):
        append(store, AuditEvent(actor="ann", action="kill.on"))
    give_back()
    assert store.writer.flush(30.0)
    assert store.writer.health().ok
    append(store, AuditEvent(actor="ann", action="kill.on"))
    assert num_stored(store.database) == (4, 1)
    assert store.writer.health().dropped == {}
    store.close()


def test_a_server_that_closes_its_connections_and_takes_no_new_ones() -> None:
    with postgresql_setting() as setting:
        gone = cut_off(setting)
        loses_and_comes_back(started(setting), gone.__enter__, lambda: gone.__exit__(None, None, None))


def test_a_connection_that_the_server_closed_is_replaced() -> None:
    with postgresql_setting() as setting:
        store = started(setting)
        ask_server(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database_name(setting)}'")
        assert append(store, AuditEvent(actor="ann", action="kill.on")).seq == 1
        store.close()


def test_a_file_that_is_moved_away(tmp_path: Path) -> None:
    file, real = tmp_path / "store.sqlite", tmp_path / "real"

    def lead_to(place: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(place)
        link.replace(file)  # at once: the writer never finds the name free and makes a new file

    lead_to(real)
    store = started(sqlite_setting(tmp_path))
    loses_and_comes_back(store, lambda: lead_to(tmp_path), lambda: lead_to(real))


def test_a_file_that_is_gone_is_made_again(tmp_path: Path) -> None:
    store = started(sqlite_setting(tmp_path))
    (tmp_path / "store.sqlite").unlink()
    store.writer.offer(record())
    assert store.writer.flush(20.0)
    assert num_stored(store.database) == (1, 0)
    store.close()


def test_a_new_file_that_several_open_at_once(tmp_path: Path) -> None:
    for turn in range(60):  # writers meet in about one turn of twenty
        setting = sqlite_setting(tmp_path / str(turn))
        opened(setting).make_file()
        meet = Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(_writes_at_once, [setting] * 4, [meet] * 4))


def _writes_at_once(setting: str, meet: Barrier) -> bool:
    database = opened(setting)
    meet.wait(10.0)
    with database.write() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS met (a INT)"))
    return True


def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    store = started(sqlite_setting(tmp_path))
    read_only: list[str] = []

    def protect(connection: object, _: object) -> None:
        for statement in read_only:
            connection.execute(statement)  # type: ignore[attr-defined]

    event.listen(store.database._engine, "connect", protect)
    loses_and_comes_back(store, lambda: read_only.append("PRAGMA query_only=ON"), read_only.clear)


def test_a_folder_that_cannot_be_made_does_not_hold_up_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = started(f"sqlite:///{tmp_path / 'file' / 'store.sqlite'}")
    wait_for(lambda: not store.writer.health().ok)
    (tmp_path / "file").unlink()
    store.writer.offer(record())
    assert store.writer.flush(20.0)
    assert num_stored(store.database) == (1, 0)
    store.close()


def test_a_full_disk(tmp_path: Path) -> None:
    database = opened(sqlite_setting(tmp_path))
    upgrade(database)
    full = False

    def limit(connection: object, _: object) -> None:
        if full:
            connection.execute("PRAGMA max_page_count=1")  # type: ignore[attr-defined]

    event.listen(database._engine, "connect", limit)
    with database.write() as connection:
        chain.append(connection, [AuditEvent(actor="ann", action="a")])
    full = True
    large = AuditEvent(actor="ann", action="b", after="x" * 200_000)
    with pytest.raises(StoreUnavailable, match="full"), database.write() as connection:
        chain.append(connection, [large])
    full = False
    with database.write() as connection:
        chain.append(connection, [large])
    with database.read() as connection:
        assert verify(chain.entries(connection), ChainEvidence(head=Anchor(*chain.head(connection)))).num_entries == 2


def test_a_full_disk_behind_the_writer(tmp_path: Path) -> None:
    store = started(sqlite_setting(tmp_path))
    limits = {"pages": 1}

    def limit(connection: object, _: object) -> None:
        if limits:
            connection.execute(f"PRAGMA max_page_count={limits['pages']}")  # type: ignore[attr-defined]

    event.listen(store.database._engine, "connect", limit)
    for _ in range(200):
        store.writer.offer(record())
    wait_for(lambda: "full" in store.writer.health().detail)
    limits.clear()
    assert store.writer.flush(20.0)
    assert store.writer.health().dropped == {}
    assert num_stored(store.database) == (200, 0)
    store.close()


def test_a_writer_that_is_killed_loses_nothing_it_called_written(setting: str) -> None:
    command = [sys.executable, "-c", KILLED, setting]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heard = [process.stdout.readline() for _ in range(12)]
        while int(heard[-1].split()[1]) == 0 and len(heard) < 10_000:  # records are written in the background
            heard.append(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest, _ = process.communicate(timeout=30)
    heard += [line for line in rest.splitlines(keepends=True) if line.endswith("\n")]
    seq, num_records = map(int, heard[-1].split())
    database = opened(setting)
    with closing(database), database.read() as connection:
        verified = verify(chain.entries(connection), ChainEvidence(head=Anchor(*chain.head(connection))))
        assert verified.num_entries >= seq
        assert verified.faults == ()
        assert records.count(connection) >= num_records > 0


def test_a_transaction_that_is_not_ended_leaves_nothing(database: Database) -> None:
    def fails() -> None:
        with database.write() as connection:
            chain.append(connection, [AuditEvent(actor="ann", action="a")])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    with database.read() as connection:
        assert chain.head(connection)[0] == 0
        assert connection.execute(text("SELECT count(*) FROM chain_links")).scalar() == 0
