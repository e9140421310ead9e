"""Each test of the store runs on both databases."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete, update

from prolepsis.audit.entry import START_OF_CHAIN
from prolepsis.store.database import Database
from prolepsis.store.migrate import upgrade
from prolepsis.store.tables import audit_head, metadata, plan_current
from tests.store.databases import opened, own_setting, postgresql_setting, sqlite_setting


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The setting of one database of PostgreSQL for all tests that do not harm it."""
    with postgresql_setting() as made:
        with closing(opened(made)) as database:
            upgrade(database)
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The `store` setting of a database of the test's own, without a schema."""
    with own_setting(request.param, tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The `store` setting of a database with its schema and nothing in it."""
    if request.param == "sqlite":
        made = sqlite_setting(tmp_path)
        with closing(opened(made)) as database:
            upgrade(database)
        return made
    made = str(request.getfixturevalue("postgresql"))
    with closing(opened(made)) as database, database.write() as connection:
        for table in set(metadata.sorted_tables) - {audit_head, plan_current}:
            connection.execute(delete(table))
        connection.execute(update(audit_head).values(seq=0, digest=START_OF_CHAIN))
        connection.execute(update(plan_current).values(version=0))
    return made


@pytest.fixture
def connect(setting: str) -> Iterator[Callable[[], Database]]:
    """Each call is another process's view of one database."""
    made: list[Database] = []

    def another() -> Database:
        made.append(opened(setting))
        return made[-1]

    yield another
    for database in made:
        database.close()


@pytest.fixture
def database(connect: Callable[[], Database]) -> Database:
    return connect()
