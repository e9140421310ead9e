"""What an upstream engine sends is bounded, and a value of another type is its own fault: a 502."""

import json
from typing import Any

import pytest

from prolepsis.adapters.upstream.api import UpstreamFault, UpstreamMalformed
from prolepsis.adapters.upstream.reading import BODY_BYTES, LINE_BYTES, MOST_POSITIONS, Lines, read_line
from prolepsis.control.web.errors import describe_error
from prolepsis.core.config import UpstreamApi
from prolepsis.core.errors import InvalidParameter, ProlepsisError, UpstreamInvalid, UpstreamUnavailable
from prolepsis.core.events import Failed, Tokens
from tests.adapters.upstream.fakes import APIS, EVENTS, FakeUpstream, api_of, request, two_pools

WRONG: tuple[object, ...] = ("x", -1, 1.5, [], {}, [[]], True, 10**30, ["x"], {"a": 1}, None)


def mutated(value: Any, wrong: object) -> list[Any]:
    """Return the value with each place in it replaced by `wrong`, one at a time."""
    found: list[Any] = [wrong]
    if isinstance(value, dict):
        found += [{**value, name: one} for name, inner in value.items() for one in mutated(inner, wrong)]
    if isinstance(value, list):
        found += [[*value[:i], one, *value[i + 1 :]] for i, inner in enumerate(value) for one in mutated(inner, wrong)]
    return found


@pytest.mark.parametrize("name", APIS)
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_any_value_of_another_type_is_taken_or_malformed(name: UpstreamApi, wrong: object) -> None:
    for event in EVENTS[name](b"hey", (3, 12, 4), [1, 1, 0, 1, 0]):
        for changed in mutated(event, wrong):
            try:
                chunk = read_line(api_of(name).reader(), f"data: {json.dumps(changed)}")
            except UpstreamFault:  # malformed, or an error that the engine says
                continue
            assert chunk is not None
            assert all(type(token) is int for token in chunk.token_ids)
            assert isinstance(chunk.text, str)


@pytest.mark.parametrize(
    "histogram",
    [[-5, 6], [1.5, 1], ["1", 2], [0] * MOST_POSITIONS + [0, 0], [-(2**40), 0], 7],
    ids=lambda said: str(said)[:12],
)
def test_a_histogram_that_cannot_be_is_malformed(histogram: Any) -> None:
    for name in APIS[:2]:
        *_, last = EVENTS[name](b"hey", (3, 12, 4), histogram)
        with pytest.raises(UpstreamMalformed):
            read_line(api_of(name).reader(), f"data: {json.dumps(last)}")


@pytest.mark.parametrize(
    "said",
    [
        {"choices": [{"token_ids": ["a"], "text": "a"}]},
        {"choices": [{"token_ids": [999], "text": "a"}]},
        {"choices": [{"token_ids": [1], "text": 5}]},
        {"choices": {"a": 1}},
        {"choices": [{"token_ids": 7}]},
        {"choices": [{"token_ids": [1], "finish_reason": ["stop"]}]},
    ],
)
async def test_values_of_a_wrong_type_are_a_502(said: object) -> None:
    raw = f"data: {json.dumps(said)}\n\n".encode()
    async with two_pools(FakeUpstream(raw=raw), FakeUpstream(raw=raw)) as client:
        with pytest.raises(UpstreamInvalid) as caught:
            _ = [event async for event in client.generate(request())]
        assert describe_error(caught.value).status == 502
        assert client.health().ready, "the next request may go well"


async def test_a_wrong_value_in_the_middle_of_an_answer_is_its_one_end() -> None:
    good = {"choices": [{"index": 0, "text": "he", "token_ids": [104, 101], "finish_reason": None}]}
    raw = f'data: {json.dumps(good)}\n\ndata: {{"choices": [{{"token_ids": 3.5}}]}}\n\n'.encode()
    async with two_pools(FakeUpstream(raw=raw), FakeUpstream(raw=raw)) as client:
        *before, last = [event async for event in client.generate(request())]
    assert all(isinstance(event, Tokens) for event in before)
    assert isinstance(last, Failed)
    assert isinstance(last.error, UpstreamInvalid)


@pytest.mark.parametrize(("status", "error"), [(500, UpstreamUnavailable), (400, InvalidParameter)])
async def test_only_the_start_of_an_errors_body_is_read(status: int, error: type[ProlepsisError]) -> None:
    raw = b"x" * (4 * BODY_BYTES)
    async with two_pools(FakeUpstream(raw=raw, status=status), FakeUpstream(raw=raw, status=status)) as client:
        with pytest.raises(error) as caught:
            _ = [event async for event in client.generate(request())]
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("raw", "refused"),
    [
        (b"data: " + b"x" * (LINE_BYTES + 100_000), "a line of more than"),
        (
            b'data: {"choices": [' + b"[]," * 99_999 + b"[]]}\n\n",
            "an event of 100004 fields, lists and objects; allowed: 65536",
        ),
    ],
    ids=["line", "event"],
)
async def test_a_line_without_an_end_and_an_event_that_takes_long_to_read_are_given_up(
    raw: bytes, refused: str
) -> None:
    async with two_pools(FakeUpstream(raw=raw), FakeUpstream(raw=raw)) as client:
        with pytest.raises(UpstreamInvalid, match=refused):
            _ = [event async for event in client.generate(request())]


def test_lines_are_cut_wherever_the_parts_end() -> None:
    text = b"data: a\r\n\ndata: \xe2\x82\xac\nlast"
    for size in range(1, len(text) + 1):
        lines = Lines()
        found = [line for i in range(0, len(text), size) for line in lines.feed(text[i : i + size])]
        assert [*found, *lines.feed(b"\n")] == ["data: a", "data: \u20ac", "last"]


@pytest.mark.parametrize("text", ["[" * 100_000, "{" + '"a":{' * 50_000, "9" * 10_000, "nothing"])
def test_what_no_parser_takes_is_malformed(text: str) -> None:
    with pytest.raises(UpstreamMalformed):
        read_line(api_of("vllm").reader(), f"data: {text}")


async def test_an_errors_text_can_be_written_whatever_it_is() -> None:
    raw = b'data: {"error": {"message": "half a \\ud83d character"}}\n\n'
    async with two_pools(FakeUpstream(raw=raw), FakeUpstream(raw=raw)) as client:
        with pytest.raises(UpstreamUnavailable, match=r"half a \? character") as caught:
            _ = [event async for event in client.generate(request())]
    assert str(describe_error(caught.value)).encode()


def test_text_that_no_tokens_follow_has_a_bound() -> None:
    reader, text = api_of("sglang").reader(), "x" * (LINE_BYTES // 2)
    for said in ("a", "b"):
        read_line(reader, f"data: {json.dumps({'text': said + text[1:], 'output_ids': []})}")
    with pytest.raises(UpstreamMalformed, match="said what its API does not"):
        read_line(reader, f"data: {json.dumps({'text': 'c', 'output_ids': []})}")
