"""Streams in which the engine, or something on the way, repeats or loses a token."""

from collections.abc import Callable, Iterable, Sequence

import httpx2
import pytest

from prolepsis.core.errors import TokensOutOfPlace
from prolepsis.core.events import Event
from prolepsis.core.requests import GenerateRequest
from prolepsis.server.text.deltas import Positions
from tests.server.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
Fault = Callable[[Sequence[Event]], Sequence[Event]]
BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 12}


class FaultyEngine(FakeEngine):
    """Answers with what `fault` makes of the events."""

    def __init__(self, fault: Fault) -> None:
        super().__init__("0123456789abcdef")
        self.fault = fault

    def _say(self, request: GenerateRequest) -> Iterable[Event | float | Exception]:
        yield from self.fault([event for event in super()._say(request) if not isinstance(event, float | Exception)])


FAULTS: dict[str, Fault] = {
    "a step comes twice": lambda events: [*events[:2], events[1], *events[2:]],
    "a step is lost": lambda events: [*events[:2], *events[3:]],
    "the first step is lost": lambda events: events[1:],
    "two steps change places": lambda events: [*events[:1], events[2], events[1], *events[3:]],
    "the end of the sample is lost": lambda events: [*events[:3], events[-1]],
}


@pytest.mark.parametrize("emit", ["block", "token"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_whole_answer_with_a_fault_is_an_error(client: Connect, name: str, emit: str) -> None:
    body = {**BODY, "speculation": {"emit": emit}}
    reply = await client(FaultyEngine(FAULTS[name])).post("/v1/completions", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (500, "tokens_out_of_place")


@pytest.mark.parametrize("emit", ["block", "token"])
@pytest.mark.parametrize("name", FAULTS)
async def test_a_stream_with_a_fault_ends_with_an_error_and_shows_no_token_wrong(
    client: Connect, name: str, emit: str
) -> None:
    body = {**BODY, "stream": True, "speculation": {"emit": emit}}
    engine = FaultyEngine(FAULTS[name])
    reply = await client(engine).post("/v1/completions", json=body)
    assert "tokens_out_of_place" in reply.text
    assert "[DONE]" not in reply.text
    shown = "".join(part.split('"', 1)[0] for part in reply.text.split('"text":"')[1:])
    assert "0123456789ab".startswith(shown)
    assert len(shown) < 12


async def test_the_samples_of_a_request_have_positions_of_their_own(client: Connect) -> None:
    reply = await client(FakeEngine("0123456789")).post("/v1/completions", json={**BODY, "n": 3, "prompt": ["a", "b"]})
    assert [choice["text"] for choice in reply.json()["choices"]] == ["0123456789"] * 6


def test_positions_name_what_came_and_what_was_expected() -> None:
    positions = Positions()
    positions.check(0, 0, 3)
    positions.check(1, 0, 1)
    positions.check(0, 3, 2)
    with pytest.raises(TokensOutOfPlace, match="sample 0 continues at token 6; allowed: 5"):
        positions.check(0, 6, 1)
