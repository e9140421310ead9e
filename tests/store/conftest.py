"""Each test of the store runs on both databases."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prolepsis.store.database import Database
from prolepsis.store.migrate import upgrade
from prolepsis.store.url import store_url
from tests.store.databases import postgresql_setting, sqlite_setting


@pytest.fixture(params=["sqlite", "postgresql"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The `store` setting of an empty database."""
    if request.param == "sqlite":
        yield sqlite_setting(tmp_path)
        return
    with postgresql_setting() as made:
        yield made


@pytest.fixture
def connect(setting: str) -> Iterator[Callable[[], Database]]:
    """Each call is another process's view of one database that has its schema."""
    opened: list[Database] = []

    def another() -> Database:
        url = store_url(setting)
        assert url is not None
        opened.append(Database(url))
        return opened[-1]

    upgrade(another())
    yield another
    for database in opened:
        database.close()


@pytest.fixture
def database(connect: Callable[[], Database]) -> Database:
    return connect()
