"""What Codex sends to /v1/responses, and what it reads: all of its fields, its kinds of tools, one identity an item."""

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.control.web.reply_headers import WARNING
from prolepsis.engine.text.answer_formats.table import HERMES
from prolepsis.engine.text.answer_formats.tool_format import Call
from tests.fake_client import INFO
from tests.server.conftest import Served, served
from tests.server.fakes import ByteTokenizer, FakeEngine

Json = dict[str, Any]
LARK = 'start: "*** Begin Patch" LF hunk+ "*** End Patch" LF?\nhunk: /.+/ LF\nLF: "\\n"'
SHELL: Json = {
    "type": "function",
    "name": "exec_command",
    "description": "Runs a command in a PTY.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
        "required": ["cmd"],
        "additionalProperties": False,
    },
}
PATCH: Json = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": LARK},
}
MCP: Json = {"type": "namespace", "name": "mcp__files", "description": "Files.", "tools": [{**SHELL, "name": "read"}]}
ASKED: list[Json] = [
    {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "<permissions>all</permissions>"}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "<environment_context/>"}]},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Rename f to g."}]},
]
REQUEST: Json = {
    "model": "tiny",
    "instructions": "You are a coding agent.",
    "input": ASKED,
    "tools": [SHELL, PATCH, MCP, {"type": "web_search", "external_web_access": False}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-7f3",
    "client_metadata": {"x-codex-installation-id": "7f3"},
}
"""Its twelve fields."""
DIFF = '*** Begin Patch\n*** Update File: a.py\n-def f():\n+def g():  # "ö"\n*** End Patch\n'
SHELL_CALL, PATCH_CALL, MCP_CALL = (
    HERMES.write([Call(name, arguments)])
    for name, arguments in (
        ("exec_command", {"cmd": "ls"}),
        ("apply_patch", {"input": DIFF}),
        ("mcp__files.read", {"cmd": "a.py"}),
    )
)
ANSWERS = {
    "text": "Done.",
    "reasoning": "<think>Let me see.</think>Done.",
    "call": SHELL_CALL,
    "custom": PATCH_CALL,
    "namespace": MCP_CALL,
    "all": f"<think>Hm.</think>I rename it.\n{SHELL_CALL}\n{PATCH_CALL}\n{MCP_CALL}",
}
ROOMY = replace(INFO, max_model_len=8192)


def running_with(text: str, step: int = 7) -> Any:
    tokenizer = ByteTokenizer("tools roles and text <think></think>")
    return served(FakeEngine(text=text, step=step, info=ROOMY), tokenizer=tokenizer)


@pytest.fixture(scope="module", params=ANSWERS)
def running(request: pytest.FixtureRequest) -> Iterator[Served]:
    with running_with(ANSWERS[request.param]) as made:
        yield made


def asked(running: Served, **changes: object) -> httpx2.Response:
    reply = httpx2.post(f"{running.url}/v1/responses", json={**REQUEST, **changes})
    assert reply.status_code == 200, reply.text
    return reply


def events_of(reply: httpx2.Response) -> list[Json]:
    return [json.loads(line.removeprefix("data: ")) for line in reply.text.splitlines() if line.startswith("data: ")]


def without_ids(items: list[Json]) -> list[Json]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


def test_its_request_is_answered_and_what_has_no_effect_is_named(running: Served) -> None:
    reply = asked(running)
    named = reply.headers[WARNING]
    for field in ("reasoning", "include[reasoning.encrypted_content]", "client_metadata", "tools[web_search]"):
        assert field in named
    assert events_of(reply)[-1]["type"] == "response.completed"


def test_each_item_has_one_identity(running: Served) -> None:
    events = events_of(asked(running))
    final = events[-1]["response"]
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == final["output"]
    assert [item["id"] for item in added] == [item["id"] for item in done]
    assert len({item["id"] for item in done}) == len(done)
    assert [item.get("call_id") for item in added] == [item.get("call_id") for item in done]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == done[event["output_index"]]["id"]
    assert {event["response"]["id"] for event in events if "response" in event} == {final["id"]}


def test_a_stream_is_well_formed(running: Served) -> None:
    """Every event is numbered, every item is begun, grows and ends before the next one begins."""
    events = events_of(asked(running))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds.count("completed") == 1
    open_item: int | None = None
    for kind, event in zip(kinds[2:-1], events[2:-1], strict=True):
        if kind == "output_item.added":
            assert open_item is None
            open_item = event["output_index"]
            assert event["item"]["status"] == "in_progress"
        assert event["output_index"] == open_item
        if kind == "output_item.done":
            assert event["item"]["status"] == "completed"
            open_item = None
    assert open_item is None
    assert kinds.count("content_part.added") == kinds.count("content_part.done")
    for item, event in zip(events[-1]["response"]["output"], _last_parts(events), strict=True):
        deltas = "".join(
            one["delta"] for one in events if one["type"].endswith(".delta") and one["item_id"] == item["id"]
        )
        whole = event.get("text", event.get("arguments", event.get("input")))
        assert deltas == whole == (item.get("arguments") or item.get("input") or item["content"][0]["text"])


def _last_parts(events: list[Json]) -> list[Json]:
    ends = ("output_text.done", "reasoning_text.done", "arguments.done", "input.done")
    return [event for event in events if event["type"].endswith(ends)]


def test_the_stream_and_the_whole_answer_agree(running: Served) -> None:
    streamed = events_of(asked(running))[-1]["response"]
    whole = asked(running, stream=False).json()
    assert without_ids(streamed["output"]) == without_ids(whole["output"])
    assert streamed["usage"] == whole["usage"]
    assert streamed["tools"] == whole["tools"] == REQUEST["tools"][:3]


def test_the_clients_stream_helper_puts_its_answers_together(running: Served) -> None:
    options = {name: value for name, value in REQUEST.items() if name not in ("stream", "client_metadata")}
    with running.openai().responses.stream(**options) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    whole = asked(running, stream=False).json()
    shown: list[Any] = [(item.type, getattr(item, "input", None)) for item in final.output]
    assert shown == [(item["type"], item.get("input")) for item in whole["output"]]
    assert "response.completed" in kinds


@pytest.mark.parametrize("step", [1, 5, 4000])
def test_kinds_of_calls(step: int) -> None:
    with running_with(ANSWERS["all"], step) as running:
        output = asked(running, stream=False).json()["output"]
    assert [item["type"] for item in output] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "function_call",
    ]
    shell, patch, read = output[2:]
    assert (shell["name"], json.loads(shell["arguments"]), "namespace" in shell) == (
        "exec_command",
        {"cmd": "ls"},
        False,
    )
    assert (patch["name"], patch["input"]) == ("apply_patch", DIFF)
    assert (read["name"], read["namespace"]) == ("read", "mcp__files")
    assert [item["id"].partition("_")[0] for item in output] == ["rs", "msg", "fc", "ctc", "fc"]


def test_a_custom_call_that_is_cut_has_what_there_is_of_its_input() -> None:
    with running_with(PATCH_CALL) as running:
        reply = asked(running, stream=False, max_output_tokens=90).json()
    [item] = reply["output"]
    assert (reply["status"], item["status"]) == ("incomplete", "incomplete")
    assert DIFF.startswith(item["input"])
    assert item["input"].startswith("*** Begin Patch")


def test_its_next_turn_goes_back_in() -> None:
    """Its items are sent back as they were told, with the results."""
    tokenizer = ByteTokenizer("tools roles and text <think></think>")
    with served(FakeEngine(text=ANSWERS["all"], info=ROOMY), tokenizer=tokenizer) as running:
        output = events_of(asked(running))[-1]["response"]["output"]
        results = [
            {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "ok"} for item in output[2:]
        ]
        reply = asked(running, input=[*ASKED, *output, *results])
        requests = running.engine.requests
    assert "input[]" not in reply.headers[WARNING]
    [_, _, _, _, said, *told] = tokenizer.messages
    calls: Any = said["tool_calls"]
    assert [call["function"]["name"] for call in calls] == ["exec_command", "apply_patch", "mcp__files.read"]
    assert calls[1]["function"]["arguments"] == {"input": DIFF}
    assert [message["tool_call_id"] for message in told] == [item["call_id"] for item in output[2:]]
    first, second = (bytes(request.prompt_token_ids) for request in requests)
    assert second.startswith(first)


def test_the_prompt_of_a_custom_tool_shows_its_form() -> None:
    tokenizer = ByteTokenizer("tools roles and text")
    with served(FakeEngine(info=ROOMY), tokenizer=tokenizer) as running:
        asked(running)
        regex = {**PATCH, "format": {"type": "grammar", "syntax": "regex", "definition": "[a-z]+"}}
        asked(running, tools=[regex], tool_choice={"type": "custom", "name": "apply_patch"})
        asked(running, tools=[regex], tool_choice="required")
        [grammar, same] = [request.grammar for request in running.engine.requests[-2:]]
    shown: Any = tokenizer.tools
    assert shown is not None
    assert grammar is not None
    assert "^(?:[a-z]+)$" in grammar.source
    assert same is not None
    assert shown[0]["function"]["description"] == "Edits files.\n\nThe input has this form:\n[a-z]+"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"tools": [SHELL, SHELL]}, "tools"),
        ({"tools": [{**MCP, "name": "x" * 65}]}, "tools[0].name"),
        ({"tools": [{**MCP, "tools": [{**SHELL, "name": f"t{i}"} for i in range(128)]}, SHELL]}, "tools"),
        ({"tools": [{**MCP, "tools": [{**SHELL, "name": "a b"}]}]}, "tools[0].tools[0].name"),
        ({"tools": [PATCH | {"format": {"type": "grammar", "syntax": "gbnf"}}]}, "tools[0].format.syntax"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "", "namespace": "a b"}]},
         "input[0].namespace"),
        ({"input": [{"type": "custom_tool_call", "call_id": "1", "name": "f"}]}, "input[0].input"),
        ({"input": [{"type": "item_reference", "id": "1"}]}, "input[0].type"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(changes: Json, param: str) -> None:
    with running_with("ok") as running:
        reply = httpx2.post(f"{running.url}/v1/responses", json={**REQUEST, **changes})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_a_grammar_that_is_not_enforced_is_named() -> None:
    with running_with("ok") as running:
        warned = asked(running).headers[WARNING]
        quiet = asked(running, tools=[{**PATCH, "format": {"type": "text"}}]).headers[WARNING]
    assert "tools[].format: the model reads the grammar, and may leave it" in warned
    assert "tools[].format" not in quiet


def test_tokens_of_an_input_are_counted() -> None:
    with running_with("ok") as running:
        counted = running.openai().responses.input_tokens.count(
            model="tiny", instructions=REQUEST["instructions"], input=REQUEST["input"], tools=[SHELL]
        )
        used = asked(running, tools=[SHELL], stream=False).json()["usage"]["input_tokens"]
        wrong = httpx2.post(f"{running.url}/v1/responses/input_tokens", json={"model": "tiny", "input": 3})
    assert (counted.object, counted.input_tokens) == ("response.input_tokens", used)
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "input")
    assert len(running.engine.requests) == 1, "counting asks nothing of the engine"
