import pytest

from prolepsis.core.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def few_logs() -> None:
    configure_logs("error")
