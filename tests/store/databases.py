"""Databases for tests: a file of SQLite, or a database of its own on a PostgreSQL server."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from prolepsis.store.database import Database, store_url

SERVER = "host=127.0.0.1 user=root dbname=postgres connect_timeout=2"


def sqlite_setting(folder: Path) -> str:
    return f"sqlite:///{folder / 'store.sqlite'}"


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
    ask_server(f"CREATE DATABASE {name}")
    try:
        yield f"postgresql://root@127.0.0.1/{name}"
    finally:
        ask_server(f"DROP DATABASE {name} WITH (FORCE)")


def ask_server(*statements: str) -> None:
    psycopg = pytest.importorskip("psycopg", reason="psycopg is not installed")
    try:
        connection = psycopg.connect(SERVER, autocommit=True)
    except psycopg.OperationalError as error:
        pytest.skip(f"no PostgreSQL server at 127.0.0.1: {error}")
    with connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def cut_off(setting: str) -> Iterator[None]:
    """Close all connections to a database of PostgreSQL, and take no new ones until the block is left."""
    name = setting.rpartition("/")[2]
    close = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    ask_server(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false", close)
    try:
        yield
    finally:
        ask_server(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")
