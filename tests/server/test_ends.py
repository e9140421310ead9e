"""Every cause that ends an answer, as each API says it, streamed and whole; the reference of the API has the table."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from prolepsis.core.errors import ClientDeadlineExceeded, GrammarFailed, ProlepsisError, StepFailed
from prolepsis.core.events import Aborted, Event, Failed, Finished, FinishReason, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.server.output.built_in import Patterns
from tests.fake_client import INFO, FakeEngineClient
from tests.server.fakes import END
from tests.server.output.policies import loaded
from tests.world.site import Site

MOST = 300
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "f", "description": "Does it.", "parameters": {"type": "object", "properties": {}}}
AS_FUNCTION = {"type": "function", "function": TOOL}
CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
KEY = "sk-" + "a1B2" * 8

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "max_tokens": MOST},
    "/v1/completions": {"prompt": "Hi", "max_tokens": MOST},
    "/v1/responses": {"input": "Hi", "max_output_tokens": MOST},
    "/v1/messages": {"messages": HI, "max_tokens": MOST},
    "/api/chat": {"messages": HI, "options": {"num_predict": MOST}},
    "/api/generate": {"prompt": "Hi", "options": {"num_predict": MOST}},
    "/completion": {"prompt": "Hi", "n_predict": MOST},
}
TOOLS: dict[str, list[Any]] = {
    "/v1/chat/completions": [AS_FUNCTION],
    "/v1/responses": [{"type": "function", **TOOL}],
    "/v1/messages": [{"name": "f", "input_schema": TOOL["parameters"]}],
    "/api/chat": [AS_FUNCTION],
}
STOPS = {"/v1/messages": "stop_sequences"}


@dataclass(frozen=True)
class Cause:
    """How an engine ends an answer, and what OpenAI's chat, responses, Anthropic, Ollama and llama.cpp say of it."""

    text: str
    reason: FinishReason | None
    stop: str | int | None
    said: tuple[str, str | None, str, str, str]


CAUSES = {
    "the model ended": Cause("so", "stop", None, ("stop", None, "end_turn", "stop", "eos")),
    "a stop token": Cause("so", "stop", 5, ("stop", None, "end_turn", "stop", "eos")),
    "a stop string": Cause("so X", "stop", "X", ("stop", None, "stop_sequence", "stop", "word")),
    "calls": Cause(CALL, "stop", None, ("tool_calls", None, "tool_use", "stop", "eos")),
    "the limit": Cause("so", "length", None, ("length", "max_output_tokens", "max_tokens", "length", "limit")),
    "no token may follow": Cause("so", "length", END, ("length", "stop", "max_tokens", "length", "limit")),
    "a stop string in a form": Cause("so X", "length", "X", ("length", "stop", "stop_sequence", "length", "word")),
    "an output policy": Cause(
        f"so {KEY} ", "stop", None, ("content_filter", "content_filter", "refusal", "content_filter", "limit")
    ),
}
FAULTS: dict[str, ProlepsisError | str] = {
    "a deadline": ClientDeadlineExceeded("too late"),
    "a step": StepFailed("a step failed"),
    "its grammar": GrammarFailed("the grammar gave up"),
    "the server stopped": "shutdown",
}


class Ending(FakeEngineClient):
    """Says a text and ends as it is told."""

    def __init__(
        self, text: str, reason: FinishReason | None, stop: str | int | None, fault: ProlepsisError | str = ""
    ):
        super().__init__(self._say, replace(INFO, max_model_len=4096))
        self._text, self._reason, self._stop, self._fault = text, reason, stop, fault

    def _say(self, request: GenerateRequest) -> Iterable[Event]:
        tokens, stats = tuple(self._text.encode()), RequestStats(num_output_tokens=len(self._text.encode()))
        yield Tokens(request.request_id, 0, tokens, 0, None, self._reason, self._stop)
        if isinstance(self._fault, ProlepsisError):
            yield Failed(request.request_id, self._fault, stats)
        elif self._fault:
            yield Aborted(request.request_id, stats, self._fault)
        yield Finished(request.request_id, stats)


async def ask(route: str, engine: FakeEngineClient, more: dict[str, Any], *, stream: bool) -> httpx2.Response:
    output = [loaded(Patterns(stops=True), name="keys")]
    async with Site(engine, output=output).http as http:
        return await http.post(route, json={"model": "tiny", "stream": stream, **BODIES[route], **more})


def last_of(reply: httpx2.Response, wanted: str) -> Any:
    """Return the last value of a member in a reply, or in the events of a stream, however deep."""
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    found: list[Any] = []

    def look(value: Any) -> None:
        if isinstance(value, dict):
            found.extend([value[wanted]] if value.get(wanted) is not None else [])
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(one)

    for line in lines if not reply.headers["content-type"].startswith("application/json") else [reply.text]:
        if line.startswith("{"):
            look(json.loads(line))
    return found[-1] if found else None


def said(route: str, reply: httpx2.Response) -> str | None:
    if route == "/v1/responses":
        details = last_of(reply, "incomplete_details")
        assert last_of(reply, "status") in ("completed", "incomplete")
        return details["reason"] if details else None
    names = {"/v1/messages": "stop_reason", "/completion": "stop_type"}
    name = "done_reason" if route.startswith("/api") else names.get(route, "finish_reason")
    value = last_of(reply, name)
    return value if value is None else str(value)


def place_of(route: str) -> int:
    places = {"/v1/responses": 1, "/v1/messages": 2, "/api/chat": 3, "/api/generate": 3, "/completion": 4}
    return places.get(route, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("name", CAUSES)
async def test_each_cause_has_its_word(name: str, route: str, stream: bool) -> None:
    cause, more = CAUSES[name], dict[str, Any]()
    if name == "calls":
        if route not in TOOLS:
            pytest.skip("it has no tools")
        more["tools"] = TOOLS[route]
    if cause.stop == "X":
        if route == "/v1/responses":
            pytest.skip("it has no stop strings")
        options = BODIES[route].get("options")
        more |= {"options": {**options, "stop": ["X"]}} if options else {STOPS.get(route, "stop"): ["X"]}
    reply = await ask(route, Ending(cause.text, cause.reason, cause.stop), more, stream=stream)
    assert reply.status_code == 200, reply.text
    assert said(route, reply) == cause.said[place_of(route)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("name", FAULTS)
async def test_what_fails_is_an_error_and_no_end(name: str, route: str, stream: bool) -> None:
    reply = await ask(route, Ending("so", None, None, FAULTS[name]), {}, stream=stream)
    assert (reply.status_code == 200) == stream
    assert '"error"' in reply.text
    if route != "/v1/responses":
        assert said(route, reply) in (None, "none")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_full_context_has_a_word_of_its_own_where_there_is_one(stream: bool) -> None:
    more = {"max_tokens": 100_000}
    for stop, word in ((None, "model_context_window_exceeded"), (END, "max_tokens")):
        reply = await ask("/v1/messages", Ending("so", "length", stop), more, stream=stream)
        assert said("/v1/messages", reply) == word
