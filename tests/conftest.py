"""What holds for every test."""

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_data_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Servers that a test starts, in processes of their own too, keep their store out of the user's directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROLEPSIS_DATA", str(tmp_path_factory.mktemp("data")))
        yield
