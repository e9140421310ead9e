"""Lines have the bounds of a request's body, and a file that is refused is not read to its end."""

import json

import pytest

from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.intake import Uploads
from prolepsis.server.batches.lines import MOST_LINES, LineReader, parse_line
from tests.server.batches.conftest import chat_line, jsonl

UPLOADS = Uploads(2**16)
LINE = json.dumps(chat_line("a")).encode()


def line(**body: object) -> bytes:
    asked = chat_line("a")
    return json.dumps({**asked, "body": {**asked["body"], **body}}).encode()


def reader() -> LineReader:
    return LineReader("batch", ["/v1/chat/completions"], UPLOADS)


def nested(depth: int) -> object:
    found: object = []
    for _ in range(depth):
        found = [found]
    return found


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (line(text="x" * (UPLOADS.most_bytes + 2**13)), "line_too_large"),
        (line(messages=[[]] * (UPLOADS.most_members + 1)), "too_many_fields"),
        (line(messages=[1] * (2 * UPLOADS.most_members + 40)), "too_many_fields"),
        (line(messages=nested(300)), "invalid_json_line"),
    ],
)
def test_a_line_has_the_bounds_of_a_body(raw: bytes, code: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_line(raw, UPLOADS)
    assert refused.value.code == code
    assert str(refused.value).startswith("The line ")
    found = reader()
    assert found.take(raw) + found.take(b"") == []
    assert [fault.code for fault in found.faults] == [code]


def test_a_line_with_the_largest_body_is_read() -> None:
    members = line(messages=[[]] * (UPLOADS.most_members - 10))
    text = line(text="x" * (UPLOADS.most_bytes - 200))
    for raw in (members, text):
        assert len(raw) <= UPLOADS.most_bytes + 200
        assert parse_line(raw, UPLOADS).custom_id == "a"


def test_empty_lines_are_bounded_and_end_the_reading() -> None:
    found = reader()
    assert len(found.take(jsonl(chat_line("a"), chat_line("b")) + b"\n" * MOST_LINES)) == 2
    assert not found.is_over
    assert found.take(b"\n" * 2**20) == []
    assert found.is_over
    assert [fault.code for fault in found.faults] == ["too_many_lines"]


@pytest.mark.parametrize("byte", [b"x", b" "])
def test_a_line_that_does_not_end_is_given_up_as_soon_as_it_is_too_long(byte: bytes) -> None:
    found, taken = reader(), 0
    while not found.is_over:
        found.take(byte * 2**14)
        taken += 2**14
    assert taken <= UPLOADS.most_bytes + 2**15
    assert [(fault.code, fault.line) for fault in found.faults] == [("line_too_large", 1)]


def test_after_a_hundred_faults_nothing_more_is_read() -> None:
    found = reader()
    found.take(b"{\n" * 200)
    assert (len(found.faults), found.is_over) == (100, True)
