"""Databases for tests: a file of SQLite, or a database of its own on a PostgreSQL server."""

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import Table, make_url, text, update

from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.links import START_OF_CHAIN
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.tables import chain_heads, metadata

SERVER = os.environ.get("PROLEPSIS_TEST_POSTGRES", "postgresql://127.0.0.1:5432/postgres")
"""The PostgreSQL server on which tests make databases, as a URL; whoever it names may make them."""


def sqlite_setting(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.sqlite'}"


@cache
def _migrated() -> bytes:
    """Return a file of SQLite with the schema and nothing in it."""
    with TemporaryDirectory() as folder, closing(opened(sqlite_setting(Path(folder)))) as database:
        upgrade(database)
        assert database.file is not None
        return database.file.read_bytes()


def migrated_setting(folder: Path) -> str:
    """Give the `store` setting of a file with the schema and nothing in it: migrations take longer than most tests."""
    file = folder / "store.sqlite"
    file.write_bytes(_migrated())
    file.chmod(0o600)
    return sqlite_setting(folder)


@contextmanager
def own_setting(kind: str, folder: Path) -> Iterator[str]:
    """Give the `store` setting of a database of one's own, without a schema: `sqlite` or `postgresql`."""
    if kind == "sqlite":
        yield sqlite_setting(folder)
        return
    with postgresql_setting() as made:
        yield made


def opened(setting: str) -> Database:
    url = store_url(setting)
    assert url is not None
    return Database(url)


@contextmanager
def postgresql_setting() -> Iterator[str]:
    """Make a database, and drop it in the end; skips where no server answers."""
    name = f"prolepsis_test_{secrets.token_hex(6)}"
    ask_server(f"CREATE DATABASE {name}", f"ALTER DATABASE {name} SET synchronous_commit TO off")  # no wait for a disk
    try:
        yield make_url(SERVER).set(database=name).render_as_string(hide_password=False)
    finally:
        ask_server(f"DROP DATABASE {name} WITH (FORCE)")


def emptied(setting: str) -> None:
    """Leave in a database of PostgreSQL what its migrations put there."""
    import psycopg

    deletes = [f"DELETE FROM {table}" for table in metadata.tables if table != chain_heads.name]
    reset = f"UPDATE {chain_heads.name} SET seq = 0, digest = '{START_OF_CHAIN}'"
    with psycopg.connect(setting, autocommit=True) as connection:
        connection.execute("; ".join([*deletes, reset]).encode())


def lapse(setting: str, table: Table) -> None:
    """Let the leases of all rows end, as they do by themselves some seconds after their server."""
    with closing(opened(setting)) as database, database.write() as connection:
        connection.execute(update(table).values(leased_until=0.0))


def ask_server(*statements: str) -> None:
    """Run statements on the server; skips where no server answers."""
    if (reason := _unreachable()) is not None:
        pytest.skip(reason)
    import psycopg

    with psycopg.connect(SERVER, autocommit=True, connect_timeout=2) as connection:
        for statement in statements:
            connection.execute(statement)


@cache
def _unreachable() -> str | None:
    """Say why there is no PostgreSQL for tests, or None."""
    try:
        import psycopg
    except ImportError:
        return "psycopg is not installed"
    try:
        psycopg.connect(SERVER, connect_timeout=2).close()
    except psycopg.OperationalError as error:
        server = make_url(SERVER).render_as_string(hide_password=True)
        return f"no PostgreSQL server at {server}, set PROLEPSIS_TEST_POSTGRES to the URL of one: {error}"
    return None


_WAITING = text("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")


def num_waiting_is(number: int, database: Database) -> bool:
    """Return whether so many connections to a database of PostgreSQL wait for locks, soon."""
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        with database.read() as connection:
            if connection.scalar(_WAITING) == number:
                return True
    return False


@contextmanager
def cut_off(setting: str) -> Iterator[None]:
    """Close all connections to a database of PostgreSQL, and take no new ones until the block is left."""
    name = database_name(setting)
    close = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    ask_server(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", close)
    try:
        yield
    finally:
        ask_server(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


def database_name(setting: str) -> str:
    name = make_url(setting).database
    assert name is not None
    return name
