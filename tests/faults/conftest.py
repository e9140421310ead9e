from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from prolepsis.control.store.migrate import upgrade
from prolepsis.core.telemetry.logs import configure_logs
from tests.control.store.databases import opened, own_setting


@pytest.fixture(autouse=True)
def few_logs() -> None:
    configure_logs("error")


@pytest.fixture(params=["sqlite", "postgresql"])
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The `store` setting of a database of the test's own, with its schema."""
    with own_setting(request.param, tmp_path) as made:
        with closing(opened(made)) as database:
            upgrade(database)
        yield made
