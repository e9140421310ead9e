"""Whole answers of fenced JSON are calls over every API, streamed and whole, and nothing else is."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from tests.fake_client import INFO
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.world.site import Site

HI = [{"role": "user", "content": "Hi"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "pattern": "^[A-Z]"}, "days": {"type": "integer"}},
    "required": ["city"],
}
FUNCTION = {"name": "weather", "description": "Tells it.", "parameters": SCHEMA}
TOOL = {"type": "function", "function": FUNCTION}
FENCED = '```json\n{\n  "name": "weather",\n  "arguments": {\n    "city": "Rome",\n    "days": 3\n  }\n}\n```'
ARGUMENTS = {"city": "Rome", "days": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HI, "tools": [TOOL], "max_tokens": 400},
    "/v1/responses": {"input": "Hi", "tools": [{"type": "function", **FUNCTION}], "max_output_tokens": 400},
    "/v1/messages": {"messages": HI, "tools": [{"name": "weather", "input_schema": SCHEMA}], "max_tokens": 400},
    "/api/chat": {"messages": HI, "tools": [TOOL], "options": {"num_predict": 400}},
}


async def ask(
    route: str, text: str, *, step: int = 3, form: str = "hermes", engine: FakeEngine | None = None, **more: object
) -> httpx2.Response:
    tokenizer = ByteTokenizer()
    tokenizer.formats = replace(tokenizer.formats, tools=TOOL_FORMATS[form])
    engine = engine or FakeEngine(text=text, step=step, info=replace(INFO, max_model_len=4096))
    async with Site(engine, tokenizer=tokenizer).http as http:
        reply = await http.post(route, json={"model": "tiny", "stream": False, **BODIES[route], **more})
    assert reply.status_code == 200, reply.text
    return reply


async def message(text: str, **more: Any) -> tuple[str | None, list[tuple[str, Any]], str]:
    """Return content, calls and finish reason of a chat."""
    [choice] = (await ask("/v1/chat/completions", text, **more)).json()["choices"]
    called = [one["function"] for one in choice["message"].get("tool_calls", ())]
    calls = [(one["name"], json.loads(one["arguments"])) for one in called]
    return choice["message"]["content"], calls, choice["finish_reason"]


def events_of(reply: httpx2.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("route", BODIES)
async def test_a_fenced_call_is_a_call_in_every_api(route: str, stream: bool) -> None:
    reply = await ask(route, FENCED, stream=stream)
    assert "```" not in reply.text
    parts = events_of(reply) if stream else [reply.json()]
    if route == "/v1/chat/completions":
        choices = [choice for part in parts for choice in part["choices"]]
        shown = [choice["delta" if stream else "message"] for choice in choices]
        [call] = [call for one in shown for call in one.get("tool_calls", ())]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("weather", ARGUMENTS)
        assert not any(one.get("content") for one in shown)
        assert choices[-1]["finish_reason"] == "tool_calls"
    elif route == "/v1/responses":
        [item] = (parts[-1]["response"] if stream else parts[0])["output"]
        assert (item["type"], item["name"], json.loads(item["arguments"])) == ("function_call", "weather", ARGUMENTS)
        assert ("response.function_call_arguments.done" in reply.text) == stream
    elif route == "/v1/messages" and not stream:
        [block] = parts[0]["content"]
        assert (block["type"], block["name"], block["input"]) == ("tool_use", "weather", ARGUMENTS)
        assert parts[0]["stop_reason"] == "tool_use"
    elif route == "/v1/messages":
        assert [part["content_block"]["type"] for part in parts if "content_block" in part] == ["tool_use"]
        written = [part["delta"]["partial_json"] for part in parts if "partial_json" in part.get("delta", {})]
        assert json.loads("".join(written)) == ARGUMENTS
        assert [part["delta"]["stop_reason"] for part in parts if part["type"] == "message_delta"] == ["tool_use"]
    else:
        [called] = [call["function"] for part in parts for call in part["message"].get("tool_calls", ())]
        assert (called["name"], called["arguments"]) == ("weather", ARGUMENTS)
        assert not any(part["message"]["content"] for part in parts)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        (FENCED, {"tool_choice": "none"}),
        (FENCED, {"form": "granite"}),
        (FENCED, {"stop": ["\n```"]}),
        (FENCED, {"max_tokens": 60}),
        (FENCED + "\nThis asks for it.", {}),
        ("Like this:\n" + FENCED, {}),
        (FENCED.replace("json", "python"), {}),
        (FENCED.replace('"weather"', '"wether"'), {}),
        (FENCED.replace("3", '"three"'), {}),
        (FENCED.replace("Rome", "rome"), {}),
        (FENCED.replace("days", "nights"), {}),
        (FENCED.replace("city", "town"), {}),
    ],
)
@pytest.mark.parametrize("step", [1, 500])
async def test_any_other_answer_is_content_unchanged(text: str, more: dict[str, Any], step: int) -> None:
    content, calls, finish = await message(text, step=step, **more)
    shown = text.removesuffix("\n```") if "stop" in more else text[: more.get("max_tokens")]
    assert (content, calls) == (shown, [])
    assert finish == ("length" if "max_tokens" in more else "stop")


async def test_a_form_that_was_asked_for_is_no_call() -> None:
    asked = {"type": "json_schema", "json_schema": {"name": "it", "schema": {"type": "object"}}}
    bare = FENCED.removeprefix("```json\n").removesuffix("\n```")
    assert await message(bare, response_format=asked) == (bare, [], "stop")
    assert await message(bare) == (None, [("weather", ARGUMENTS)], "tool_calls")


async def test_every_sample_is_read_and_log_probabilities_are_all_there() -> None:
    reply = (await ask("/v1/chat/completions", FENCED, n=3, logprobs=True)).json()
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["tool_calls"] * 3
    assert len({choice["message"]["tool_calls"][0]["id"] for choice in reply["choices"]}) == 3
    assert all(len(choice["logprobs"]["content"]) >= len(FENCED) for choice in reply["choices"])


async def test_an_answer_that_was_begun_by_the_client_is_read_as_text() -> None:
    messages = [*HI, {"role": "assistant", "content": "Look: "}]
    more = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    content, calls, _ = await message(FENCED, **more)
    assert (content, calls) == (FENCED, [])


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, '```json\n{\n  "name": "weather",\n  "arguments": {\n    "city": "",\n    "days": ""\n  }\n}\n```'),
        ({"prediction": {"type": "content", "content": "the client's"}}, "the client's"),
        ({"tool_choice": "required"}, ""),
        ({"form": "granite"}, ""),
    ],
)
async def test_drafts_are_made_from_what_calls_look_like(more: dict[str, Any], expected: str) -> None:
    engine = FakeEngine(text="so", info=replace(INFO, max_model_len=4096))
    reply = (await ask("/v1/chat/completions", "", engine=engine, **more)).json()
    assert bytes(engine.requests[0].prediction_token_ids).decode() == expected
    counted = "accepted_prediction_tokens" in reply["usage"].get("completion_tokens_details", {})
    assert counted == ("prediction" in more), "what we expect ourselves is not billed"
