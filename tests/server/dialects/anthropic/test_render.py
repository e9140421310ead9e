"""Answers as Anthropic's messages: every stream equals its twin."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from jiter import from_json

from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine

ROOMY = replace(INFO, max_model_len=4096)
THINKS = "roles, text, tools and <think></think>"
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
TOOL = {"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}
BODY: dict[str, Any] = {"model": "tiny", "max_tokens": 999, "messages": [{"role": "user", "content": "Hi"}]}


def events_of(reply: httpx2.Response) -> list[dict[str, Any]]:
    """Return the events of a stream, each under its own name."""
    events = []
    for part in reply.text.rstrip("\n").split("\n\n"):
        name, data = part.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def put_together(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message as a client makes it of its events."""
    message: dict[str, Any] = dict(events[0]["message"])
    arguments: dict[int, str] = {}
    for event in events:
        block = message["content"][event["index"]] if event["type"] == "content_block_delta" else {}
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
            case "content_block_delta":
                match event["delta"]["type"]:
                    case "text_delta":
                        block["text"] += event["delta"]["text"]
                    case "thinking_delta":
                        block["thinking"] += event["delta"]["thinking"]
                    case "signature_delta":
                        block["signature"] = event["delta"]["signature"]
                    case "input_json_delta":
                        arguments[event["index"]] = arguments.get(event["index"], "") + event["delta"]["partial_json"]
            case "content_block_stop" if event["index"] in arguments:
                message["content"][event["index"]]["input"] = from_json(
                    arguments[event["index"]].encode(), partial_mode=True
                )
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    return message


def plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without what differs from request to request."""
    content = [{k: v for k, v in block.items() if k not in ("id", "signature")} for block in message["content"]]
    return {**message, "id": "", "content": content}


@pytest.mark.parametrize("step", [1, 4, 500])
@pytest.mark.parametrize(
    ("text", "options", "kinds", "reason"),
    [
        ("Grüße, world! 👋 done", {}, ["text"], "end_turn"),
        ("Grüße, world! 👋 done", {"max_tokens": 9}, ["text"], "max_tokens"),
        ("Grüße, world! 👋 done", {"stop_sequences": ["no", "world"]}, ["text"], "stop_sequence"),
        (f"<think>hm</think>I look.\n{CALL}\n{CALL}", {"tools": [TOOL]}, ["thinking", "text", *2 * ["tool_use"]], ""),
        (CALL, {"tools": [TOOL], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}, ["tool_use"], ""),
        ("", {}, [], "end_turn"),
    ],
)
def test_the_stream_tells_what_its_twin_shows(
    step: int, text: str, options: dict[str, Any], kinds: list[str], reason: str
) -> None:
    with served(FakeEngine(text=text, step=step, info=ROOMY), tokenizer=ByteTokenizer(THINKS)) as running:
        url = f"{running.url}/v1/messages?beta=true"
        whole = httpx2.post(url, json={**BODY, **options}).json()
        events = events_of(httpx2.post(url, json={**BODY, **options, "stream": True}))
    assert plain(put_together(events)) == plain(whole)
    assert [block["type"] for block in whole["content"]] == kinds
    assert whole["stop_reason"] == (reason or "tool_use")
    assert whole["stop_sequence"] == ("world" if reason == "stop_sequence" else None)
    assert whole["id"].startswith("msg_")
    assert (
        whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"]
        == (events[0]["message"]["usage"]["input_tokens"])
    )
    order = [event["type"] for event in events]
    assert order[:2] == ["message_start", "ping"]
    assert order[-2:] == ["message_delta", "message_stop"]
    for index in range(len(kinds)):
        mine = [event["type"] for event in events if event.get("index") == index]
        assert mine == ["content_block_start", *["content_block_delta"] * (len(mine) - 2), "content_block_stop"]


def test_arguments_that_were_cut_are_closed() -> None:
    cut = {**BODY, "tools": [TOOL], "max_tokens": len(CALL[: CALL.index("ln")].encode())}
    with served(FakeEngine(text=CALL, info=ROOMY), tokenizer=ByteTokenizer(THINKS)) as running:
        reply = httpx2.post(f"{running.url}/v1/messages", json=cut).json()
    [block] = reply["content"]
    assert (block["name"], block["input"], reply["stop_reason"]) == ("weather", {}, "max_tokens")


def test_more_tokens_than_the_context_has_are_cut_to_its_room() -> None:
    with served(FakeEngine(text="x" * 9000, info=ROOMY)) as running:
        reply = httpx2.post(f"{running.url}/v1/messages", json={**BODY, "max_tokens": 32000}).json()
        too_long = {**BODY, "messages": [{"role": "user", "content": "x" * 5000}]}
        refused = httpx2.post(f"{running.url}/v1/messages", json=too_long)
    assert reply["stop_reason"] == "model_context_window_exceeded"
    assert reply["usage"]["output_tokens"] == 4096 - len("user:Hi\n")
    assert refused.status_code == 400
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")
