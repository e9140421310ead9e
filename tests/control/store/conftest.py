from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.control.store.databases import own_setting


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The `store` setting of a database of the test's own, without a schema."""
    with own_setting(request.param, tmp_path) as made:
        yield made
