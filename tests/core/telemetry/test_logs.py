import io
import json
import logging

import structlog

from prolepsis.core.telemetry.logs import FewLines, LibraryLines, configure_logs
from tests.clock import Clock


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


def test_a_few_lines_a_minute_of_each_kind_with_the_number_left_out() -> None:
    clock = Clock()
    lines = FewLines(3, clock)
    assert [lines.take("a") for _ in range(5)] == [0, 0, 0, None, None]
    assert lines.take("b") == 0
    clock.now += 20
    assert [lines.take("a") for _ in range(2)] == [2, None]
    clock.now += 600
    assert [lines.take("a") for _ in range(4)] == [1, 0, 0, None]


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_malformed_line_of_a_library_does_not_break_what_logs_it() -> None:
    out = io.StringIO()
    configure_logs("info", as_json=True, stream=out)
    logger = logging.Logger("library")
    logger.addHandler(LibraryLines("http_server"))
    logger.error("%d bytes", "x")
    logger.error("%s", Unprintable())
    logger.error(Unprintable())
    assert [json.loads(line)["detail"] for line in out.getvalue().splitlines()] == ["%d bytes", "%s", "Unprintable"]


def test_warnings_of_a_library_are_lines_of_the_server_a_few_a_minute() -> None:
    out, clock = io.StringIO(), Clock()
    configure_logs("info", as_json=True, stream=out)
    logger = logging.Logger("library")
    logger.addHandler(LibraryLines("http_server", FewLines(2, clock)))
    for i in range(2000):
        clock.now = 0.06 * i
        logger.warning("Bad request of %d bytes", i)
        logger.info("not of interest")
    logger.error("something else")
    first, *others, last = map(json.loads, out.getvalue().splitlines())
    assert (first["event"], first["level"], first["detail"]) == ("http_server", "warning", "Bad request of 0 bytes")
    assert len(others) == 4, "two minutes: two at once, and two a minute"
    assert sum(line.get("left_out", 0) for line in others) > 1400
    assert (last["level"], last["detail"]) == ("error", "something else")


def test_what_asyncio_says_is_a_line_of_the_log() -> None:
    """Of a client that left in the middle of an answer it wrote text between the lines of JSON."""
    out = io.StringIO()
    configure_logs("info", as_json=True, stream=out)
    logging.getLogger("asyncio").warning("socket.send() raised exception.")
    line = json.loads(out.getvalue())
    assert (line["event"], line["level"], line["detail"]) == (
        "event_loop",
        "warning",
        "socket.send() raised exception.",
    )


def test_a_logger_that_a_library_turned_off_is_heard_again() -> None:
    out = io.StringIO()
    logging.getLogger("asyncio").disabled = True
    configure_logs("info", as_json=True, stream=out)
    logging.getLogger("asyncio").warning("socket.send() raised exception.")
    assert json.loads(out.getvalue())["event"] == "event_loop"
