import io
import json
from collections.abc import Iterator

import pytest
import structlog

from prolepsis.telemetry.logs import configure_logs


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_lines_without_what_users_wrote() -> None:
    out = io.StringIO()
    configure_logs("info", as_json=True, stream=out)
    log = structlog.get_logger()
    log.debug("too fine")
    log.info("request", prompt="my secret", messages=[1, 2], num_tokens=3)
    line = json.loads(out.getvalue())
    assert line["event"] == "request"
    assert line["num_tokens"] == 3
    assert (line["prompt"], line["messages"]) == ("<hidden: 9>", "<hidden: 2>")
    assert "secret" not in out.getvalue()


def test_errors_are_written_with_their_traceback_but_no_local_variables() -> None:
    out = io.StringIO()
    configure_logs("error", stream=out)
    log = structlog.get_logger()
    prompt = "my " + "secret"
    try:
        raise ValueError("broken" if prompt else "")
    except ValueError as error:
        log.error("failed", exc_info=error)
    log.info("too fine")
    assert "ValueError: broken" in out.getvalue()
    assert "my secret" not in out.getvalue()
    assert "[info" not in out.getvalue()
