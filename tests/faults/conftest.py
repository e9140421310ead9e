from collections.abc import Iterator

import pytest
import structlog

from prolepsis.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def few_logs() -> Iterator[None]:
    configure_logs("error")
    yield
    structlog.reset_defaults()
