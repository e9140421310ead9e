"""POST /v1/responses through the official client: typed events, items, and every stream equal to its twin."""

import json
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

import httpx2
import openai
import pytest
from openai.types.responses import ResponseStreamEvent
from prometheus_client import CollectorRegistry
from pydantic import BaseModel, TypeAdapter

from prolepsis.control.store.store import open_store
from prolepsis.core.config import LimitTerms, ServerConfig
from tests.fake_client import INFO
from tests.server.conftest import Served, served
from tests.server.fakes import ByteTokenizer, FakeEngine

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
NO_SCHEMA = {"type": "json_schema", "name": "a"}
ROOMY = replace(INFO, max_model_len=4096)

THINKS = "roles, text and <think></think>"


class City(BaseModel):
    name: str


def plain(item: Any) -> Any:
    """Return an item without what differs from request to request."""
    return {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")}


@pytest.mark.parametrize("step", [1, 4, 500])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Grüße, world! 👋 done", {}),
        ("Grüße, world! 👋 done", {"max_output_tokens": 9}),
        ("Grüße", {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        (f"<think>hm</think>Let me look.\n{CALL}\n{CALL}", {"tools": [TOOL]}),
        (CALL, {"tools": [TOOL], "parallel_tool_calls": False}),
        ("", {}),
    ],
)
def test_the_stream_tells_what_its_twin_shows(step: int, text: str, options: dict[str, Any]) -> None:
    with served(FakeEngine(text=text, step=step, info=ROOMY), tokenizer=ByteTokenizer(THINKS)) as running:
        create: Any = running.openai().responses.create
        whole = create(model="tiny", input="Hi", **options)
        events = list(create(model="tiny", input="Hi", stream=True, **options))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert [plain(item) for item in last.response.output] == [plain(item) for item in whole.output]
    assert last.response.usage == whole.usage
    assert last.response.incomplete_details == whole.incomplete_details
    for index, item in enumerate(last.response.output):
        mine = [event for event in events if getattr(event, "output_index", None) == index]
        assert mine[0].type == "response.output_item.added"
        assert mine[-1].type == "response.output_item.done"
        assert mine[-1].item == item
        told = "".join(event.delta for event in mine if event.type.endswith(".delta"))
        assert told == (item.arguments if item.type == "function_call" else item.content[0].text)
        done = next(event for event in mine if event.type.endswith((".text.done", "_text.done", "arguments.done")))
        assert (done.arguments if item.type == "function_call" else done.text) == told
        logprobs = [
            token for event in mine for token in getattr(event, "logprobs", None) or [] if "delta" in event.type
        ]
        if item.type == "message":
            assert [token.token for token in logprobs] == [token.token for token in item.content[0].logprobs or []]


def test_items_of_an_answer_with_thought_text_and_calls() -> None:
    text = f"<think>hm</think>Let me look.\n{CALL}"
    with served(FakeEngine(text=text, info=ROOMY), tokenizer=ByteTokenizer(THINKS)) as running:
        reply = running.openai().responses.create(model="tiny", input="Hi", tools=[TOOL])
    assert [item.type for item in reply.output] == ["reasoning", "message", "function_call"]
    assert reply.output_text == "Let me look."
    call: Any = reply.output[-1]
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Köln"})
    assert reply.usage is not None
    assert reply.usage.output_tokens_details.reasoning_tokens == 2
    assert reply.usage.input_tokens_details.cached_tokens == 2
    assert reply.status == "completed"
    assert reply.id.startswith("resp_")


def test_a_conversation_with_calls_goes_back_in() -> None:
    tokenizer = ByteTokenizer("{{ tools }}" + THINKS)
    with served(FakeEngine(text=CALL, info=ROOMY), tokenizer=tokenizer) as running:
        client: Any = running.openai()
        question = {"role": "user", "content": [{"type": "input_text", "text": "Köln?"}]}
        first = client.responses.create(model="tiny", input=[question], tools=[TOOL], instructions="Be brief.")
        call = first.output[0]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        client.responses.create(
            model="tiny",
            input=[question, *first.output, result],
            tools=[TOOL],
            tool_choice={"type": "function", "name": "weather"},
        )
    assert [message["role"] for message in tokenizer.messages] == ["user", "assistant", "tool"]
    calls: Any = tokenizer.messages[1]["tool_calls"]
    assert calls[0]["function"] == {"name": "weather", "arguments": {"city": "Köln"}}
    assert tokenizer.messages[2]["tool_call_id"] == call.call_id
    assert tokenizer.tools is not None
    assert "open[lazy]" not in str(running.engine.requests[-1].grammar)


def test_instructions_and_output_texts_are_messages() -> None:
    tokenizer = ByteTokenizer()
    with served(FakeEngine(), tokenizer=tokenizer) as running:
        client: Any = running.openai()
        first = client.responses.create(model="tiny", input="Hi", instructions="Be brief.")
        client.responses.create(model="tiny", input=[{"role": "user", "content": "Hi"}, *first.output])
    assert tokenizer.messages == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": running.engine.text},
    ]


def test_the_clients_parser_understands_structured_answers() -> None:
    with served(FakeEngine(text='{"name": "Köln"}')) as running:
        reply = running.openai().responses.parse(model="tiny", input="Hi", text_format=City)
        grammar = running.engine.requests[-1].grammar
    assert reply.output_parsed == City(name="Köln")
    assert grammar is not None
    assert grammar.kind == "json_schema"


def test_the_response_repeats_the_parameters_of_the_body(shared: Served) -> None:
    reply: Any = shared.openai().responses.create(
        model="tiny",
        input="Hi",
        metadata={"a": "b"},
        temperature=0.5,
        user="u",
        extra_body={"speculation": {"metrics": True}},
    )
    assert (reply.metadata, reply.temperature, reply.user, reply.to_dict()["store"]) == ({"a": "b"}, 0.5, "u", False)
    assert reply.to_dict()["metrics"]["effective"]["mode"] == "on"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"conversation": "c"}, "conversation"),
        ({"truncation": "middle"}, "truncation"),
        ({"max_output_tokens": 100000}, "input"),
        ({"extra_body": {"max_output_tokens": 0}}, "max_output_tokens"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{**TOOL, "strict": True}]}, "tools[0].parameters"),
        ({"text": {"format": NO_SCHEMA}}, "text.format"),
        ({"text": {"format": {**NO_SCHEMA, "schema": {}, "strict": True}}}, "text.format.schema"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"extra_body": {"n": 2}}, "n"),
    ],
)  # fmt: skip
def test_refusals_name_the_field(shared: Served, options: dict[str, Any], param: str) -> None:
    create: Any = shared.openai().responses.create
    with pytest.raises(openai.BadRequestError) as refused:
        create(**{"model": "tiny", "input": "Hi", **options})
    assert refused.value.param == param


def test_an_exhausted_context_is_said_in_openais_words(shared: Served) -> None:
    with pytest.raises(openai.BadRequestError, match=r"This model's maximum context length is \d+ tokens") as refused:
        shared.openai().responses.create(model="tiny", input="Hi", max_output_tokens=100000)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("text", ["Grüße", f"So. {CALL}", '{"name": "Köln"}'])
def test_the_clients_stream_helper_puts_the_answer_together(text: str) -> None:
    with served(FakeEngine(text=text, step=2, info=ROOMY)) as running:
        with running.openai().responses.stream(model="tiny", input="Hi", tools=[TOOL]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_response()
        whole = running.openai().responses.create(model="tiny", input="Hi", tools=[TOOL])
    assert "response.completed" in kinds
    assert final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]


@cache
def stream_events() -> TypeAdapter[Any]:
    return TypeAdapter(ResponseStreamEvent)


ENDS = ("response.completed", "response.incomplete", "response.failed")


def check_order(events: list[dict[str, Any]]) -> None:
    """Check what clients rely on: numbers without a gap, items one after the other and opened before they grow."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert [kind for kind in kinds if kind in ENDS] == kinds[-1:]
    assert {event["response"]["id"] for event in events if "response" in event} == {events[0]["response"]["id"]}
    items: list[dict[str, Any]] = []
    opened: dict[str, Any] | None = None
    has_part = False
    for event in events[2:-1]:
        if event["type"] == "response.output_item.added":
            assert (opened, event["output_index"], event["item"]["status"]) == (None, len(items), "in_progress")
            opened = event["item"]
            continue
        assert opened is not None, event
        assert event["output_index"] == len(items)
        if event["type"] == "response.output_item.done":
            assert not has_part
            assert (event["item"]["id"], event["item"]["type"]) == (opened["id"], opened["type"])
            items.append(event["item"])
            opened = None
            continue
        assert event["item_id"] == opened["id"]
        is_part = event["type"] == "response.content_part.added"
        assert has_part == (opened["type"] in ("message", "reasoning") and not is_part)
        has_part = is_part or (has_part and event["type"] != "response.content_part.done")
    assert opened is None
    assert events[-1]["response"]["output"] == items, "the answer has the items of the stream, with their ids"


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("Grüße, world! 👋 done", {}),
        ("Grüße", {"max_output_tokens": 4}),
        (f"<think>hm</think>Let me look.\n{CALL}\n{CALL}", {"tools": [TOOL]}),
        ("", {}),
    ],
)
def test_events_have_openais_order_and_types(sqlite: str, text: str, options: dict[str, Any], background: bool) -> None:
    store = open_store(sqlite, CollectorRegistry())
    config = ServerConfig(store=sqlite, response_retention_days=1, limits=LimitTerms(start_drafts=0))
    body = {"model": "tiny", "input": "Hi", "stream": True, "background": background, **options}
    with (
        closing(store),
        served(FakeEngine(text=text, info=ROOMY), config, ByteTokenizer(THINKS), store=store) as running,
        httpx2.stream("POST", f"{running.url}/v1/responses", json=body) as reply,
    ):
        lines = [line for line in reply.iter_lines() if line and line[0] != ":"]  # a slow start pings
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert lines[::2] == [f"event: {event['type']}" for event in events]
    check_order(events)
    for event in events:
        shown = stream_events().validate_python(event)
        assert shown.type == event["type"]


def test_a_tool_of_a_namespace_may_be_chosen() -> None:
    space = {"type": "namespace", "name": "mcp", "description": "Files.", "tools": [TOOL]}
    chosen = {"type": "function", "name": "weather", "namespace": "mcp"}
    call = CALL.replace("weather", "mcp.weather")
    with served(FakeEngine(text=call, info=ROOMY)) as running:
        create: Any = running.openai().responses.create
        reply = create(model="tiny", input="Hi", tools=[space, TOOL], tool_choice=chosen)
        with pytest.raises(openai.BadRequestError, match="tool_choice"):
            create(model="tiny", input="Hi", tools=[TOOL], tool_choice=chosen)
    assert (reply.output[0].name, reply.output[0].namespace) == ("weather", "mcp")
    assert reply.tool_choice.to_dict() == chosen
    assert "mcp.weather" in str(running.engine.requests[0].grammar)
