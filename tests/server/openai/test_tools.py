"""Tools over HTTP: what the model is told, what it may call, and every stream equal to its twin."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from prolepsis.core.errors import InvalidGrammar
from tests.fake_client import INFO
from tests.server.conftest import served
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.world.site import Site

USER: Any = [{"role": "user", "content": "Hi"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'
HISTORY: Any = [
    {"role": "user", "content": "Köln?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}},
            {"id": "2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sun"},
    {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "rain"}]},
]


class City(BaseModel):
    name: str


def roomy(**options: Any) -> FakeEngine:
    """Return an engine whose context holds a tool's explanation in bytes."""
    return FakeEngine(info=replace(INFO, max_model_len=4096), **options)


def joined(chunks: list[Any], index: int) -> dict[str, Any]:
    """Put a choice's deltas together the way clients do."""
    message: dict[str, Any] = {"content": None, "reasoning_content": None, "tool_calls": {}}
    for chunk in chunks:
        for choice in chunk.choices:
            if choice.index != index:
                continue
            delta = choice.delta.to_dict()
            for name in ("content", "reasoning_content"):
                if delta.get(name):
                    message[name] = (message[name] or "") + delta[name]
            for call in delta.get("tool_calls", []):
                known = message["tool_calls"].setdefault(call["index"], {"arguments": ""})
                if "id" in call:
                    assert "name" not in known, "id and name come once"
                    known |= {"id": call["id"], "name": call["function"]["name"]}
                known["arguments"] += call["function"]["arguments"]
    return message


@pytest.mark.parametrize("step", [1, 3, 7, 500])
@pytest.mark.parametrize(
    ("text", "content", "cities", "finish"),
    [
        (CALL, None, ["Köln"], "tool_calls"),
        (f"Let me look. 👋\n{CALL}\n{CALL}", "Let me look. 👋", ["Köln", "Köln"], "tool_calls"),
        ("No need < of tools.", "No need < of tools.", [], "stop"),
    ],
)
def test_streamed_calls_equal_their_twins(
    step: int, text: str, content: str | None, cities: list[str], finish: str
) -> None:
    with served(roomy(text=text, step=step)) as running:
        create: Any = running.openai().chat.completions.create
        options = {"model": "tiny", "messages": USER, "tools": [TOOL], "n": 2}
        whole = create(**options)
        chunks = list(create(**options, stream=True))
    for choice in whole.choices:
        calls = choice.message.tool_calls or []
        assert choice.message.content == content
        assert [json.loads(call.function.arguments) for call in calls] == [{"city": city} for city in cities]
        assert len({call.id for call in calls}) == len(calls)
        stream = joined(chunks, choice.index)
        assert stream["content"] == content
        told = [(call["name"], call["arguments"]) for call in stream["tool_calls"].values()]
        assert told == [(call.function.name, call.function.arguments) for call in calls]
        assert all(call["id"].startswith("call_") for call in stream["tool_calls"].values())
        finishes = [c.finish_reason for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert [finish for finish in finishes if finish] == [choice.finish_reason] == [finish]


@pytest.mark.parametrize("stream", [False, True])
def test_no_second_call_is_sent_if_one_is_allowed(stream: bool) -> None:
    with served(roomy(text=f"So\n{CALL}\n{CALL}", step=5)) as running:
        create: Any = running.openai().chat.completions.create
        reply = create(model="tiny", messages=USER, tools=[TOOL], parallel_tool_calls=False, stream=stream)
        message = joined(list(reply), 0) if stream else reply.choices[0].message.to_dict()
    assert len(message["tool_calls"]) == 1
    assert message["content"] == f"So{CALL}"


def test_a_cut_call_ends_with_length() -> None:
    with served(roomy(text=CALL)) as running:
        reply = running.openai().chat.completions.create(model="tiny", messages=USER, tools=[TOOL], max_tokens=60)
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.to_dict()["tool_calls"][0]["function"]["arguments"].startswith('{"ci')  # type: ignore[index]


FORM: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
RESPONSE_TOOL = {"type": "function", **TOOL["function"]}
CUTS = [
    (CALL, {"tools": [TOOL]}, "K", "length"),
    (CALL, {"tools": [TOOL], "tool_choice": "required"}, "name", "length"),
    (f"{CALL}\n{CALL.replace('Köln', 'Bonn')}", {"tools": [TOOL]}, "Bonn", "length"),
    (f"{CALL} and more", {"tools": [TOOL]}, "more", "tool_calls"),
    ('{"a": [1, 2]}', {"response_format": FORM}, "2", "length"),
    ('{"a": [1, 2]} more', {"response_format": FORM}, "more", "stop"),
    ("plain text", {"tools": [TOOL]}, "text", "stop"),
]


def _of_responses(options: dict[str, Any]) -> dict[str, Any]:
    changed = {"tools": [RESPONSE_TOOL]} if "tools" in options else {"text": {"format": {"type": "json_object"}}}
    return {name: value for name, value in (options | changed).items() if name != "response_format"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("text", "options", "stop", "finish"), CUTS)
def test_what_a_stop_string_cuts_is_never_handed_out_as_whole(
    stream: bool, text: str, options: dict[str, Any], stop: str, finish: str
) -> None:
    with served(roomy(text=text, step=5)) as running:
        create: Any = running.openai().chat.completions.create
        reply = create(model="tiny", messages=USER, stream=stream, stop=[stop], **options)
        last = list(reply)[-1].choices[0] if stream else reply.choices[0]
        create = running.openai().responses.create
        response = create(
            model="tiny", input="Hi", stream=stream, extra_body={"stop": [stop]}, **_of_responses(options)
        )
        response = list(response)[-1].response if stream else response
    assert (last.finish_reason, last.to_dict()["stop_reason"]) == (finish, stop)
    is_cut = finish == "length"
    assert response.status == ("incomplete" if is_cut else "completed")
    assert (response.incomplete_details.reason if is_cut else response.incomplete_details) == (
        "stop" if is_cut else None
    )
    for item in response.output:
        whole = item.type == "function_call" and item.arguments.endswith("}")
        assert item.status == ("incomplete" if is_cut and not whole else "completed")


def test_a_text_completion_says_that_its_form_was_cut() -> None:
    with served(roomy(text='{"a": "b c"}')) as running:
        create: Any = running.openai().completions.create
        reply = create(model="tiny", prompt="Hi", stop=["c"], max_tokens=50, extra_body={"response_format": FORM})
        choices = {"structured_outputs": {"choice": ['{"a": "b c"}', '{"a": "b ']}}
        other = create(model="tiny", prompt="Hi", stop=["c"], max_tokens=50, extra_body=choices)
    assert (reply.choices[0].finish_reason, other.choices[0].finish_reason) == ("length", "stop")


def test_arguments_stream_as_they_come() -> None:
    with served(roomy(text=CALL, step=4)) as running:
        stream: Any = running.openai().chat.completions.create(model="tiny", messages=USER, tools=[TOOL], stream=True)
        parts = [
            call.function.arguments
            for chunk in stream
            for call in chunk.choices[0].delta.tool_calls or []
            if call.function.arguments
        ]
    assert "".join(parts) == '{"city": "Köln"}'
    assert len(parts) >= 4


@pytest.mark.parametrize(
    ("choice", "kind"),
    [("auto", "lark"), ("required", "lark"), ({"type": "function", "function": {"name": "weather"}}, "lark")],
)
def test_the_choice_becomes_a_grammar(choice: Any, kind: str) -> None:
    with served(roomy()) as running:
        running.openai().chat.completions.create(model="tiny", messages=USER, tools=[TOOL], tool_choice=choice)
        grammar = running.engine.requests[-1].grammar
    assert grammar is not None
    assert grammar.kind == kind
    assert "weather" in grammar.source
    assert ("TEXT" in grammar.source) == (choice == "auto")


def test_no_tool_may_be_called_with_none() -> None:
    with served(roomy(text=CALL)) as running:
        reply = running.openai().chat.completions.create(model="tiny", messages=USER, tools=[TOOL], tool_choice="none")
        assert running.engine.requests[-1].grammar is None
    assert reply.choices[0].message.content == CALL
    assert reply.choices[0].finish_reason == "stop"


def test_templates_without_tools_get_an_explanation_and_written_calls() -> None:
    tokenizer = ByteTokenizer()
    with served(roomy(), tokenizer=tokenizer) as running:
        running.openai().chat.completions.create(model="tiny", messages=HISTORY, tools=[TOOL], max_tokens=5)
    system, user, assistant, results = tokenizer.messages
    assert tokenizer.tools is None
    assert system["role"] == "system"
    assert '"name": "weather"' in str(system["content"])
    assert "<tool_call>" in str(system["content"])
    assert user == {"role": "user", "content": "Köln?"}
    assert str(assistant["content"]).startswith(CALL)
    assert str(assistant["content"]).count("<tool_call>") == 2
    assert results["role"] == "user"
    assert str(results["content"]) == (
        "<tool_response>\nsun\n</tool_response>\n<tool_response>\nrain\n</tool_response>"
    )


def test_templates_with_tools_get_them_as_they_are() -> None:
    tokenizer = ByteTokenizer("{% for tool in tools %}")
    with served(roomy(), tokenizer=tokenizer) as running:
        running.openai().chat.completions.create(
            model="tiny",
            messages=HISTORY,
            tools=[TOOL],
            max_tokens=5,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
    assert tokenizer.tools == [TOOL]
    assert tokenizer.variables == {"enable_thinking": False}
    calls: Any = tokenizer.messages[1]["tool_calls"]
    assert calls[0]["function"] == {"name": "weather", "arguments": {"city": "Köln"}}
    assert tokenizer.messages[2] == {"role": "tool", "content": "sun", "tool_call_id": "1"}


@pytest.mark.parametrize("depth", [300, 30_000])
async def test_json_nested_too_deeply_is_refused_by_name(depth: int) -> None:
    nested = "[" * depth + "]" * depth
    call: Any = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": nested}}
    chat = {"model": "tiny", "messages": [*USER, {"role": "assistant", "tool_calls": [call]}]}
    async with Site(roomy(), tokenizer=ByteTokenizer("{% for tool in tools %}")).http as http:
        replies = [
            await http.post("/v1/chat/completions", json=chat),
            await http.post("/v1/chat/completions", json={**chat, "structured_outputs": {"json": nested}}),
            await http.post(
                "/v1/responses",
                json={"model": "tiny", "input": [{**call["function"], "type": "function_call", "call_id": "1"}]},
            ),
        ]
    assert [reply.status_code for reply in replies] == [400, 400, 400], [reply.text for reply in replies]
    fields = [reply.json()["error"]["param"] for reply in replies]
    assert fields == ["messages[1].tool_calls[0].function.arguments", "structured_outputs.json", "input"]


def test_an_explanation_joins_the_callers_system_message() -> None:
    tokenizer = ByteTokenizer()
    with served(roomy(), tokenizer=tokenizer) as running:
        messages: Any = [{"role": "system", "content": "Be brief."}, *USER]
        running.openai().chat.completions.create(model="tiny", messages=messages, tools=[TOOL], max_tokens=5)
    assert [message["role"] for message in tokenizer.messages] == ["system", "user"]
    assert str(tokenizer.messages[0]["content"]).startswith("Be brief.\n\nYou can call functions.")


@pytest.mark.parametrize("stream", [False, True])
def test_reasoning_is_shown_apart_and_counted(stream: bool) -> None:
    engine = roomy(text="<think>\nhm, 👋\n</think>\n\nFour.", step=2)
    with served(engine, tokenizer=ByteTokenizer("<think></think>")) as running:
        options: Any = {"stream_options": {"include_usage": True}} if stream else {}
        reply: Any = running.openai().chat.completions.create(model="tiny", messages=USER, stream=stream, **options)
        if stream:
            chunks = list(reply)
            message, usage = joined(chunks, 0), chunks[-1].usage
        else:
            message, usage = reply.choices[0].message.to_dict(), reply.usage
    assert message["content"] == "Four."
    assert message["reasoning_content"] == "hm, 👋"
    assert usage.completion_tokens_details.reasoning_tokens == len("hm, 👋".encode())


def test_reasoning_is_text_where_the_template_knows_no_marks() -> None:
    with served(roomy(text="<think>hm</think>4")) as running:
        reply = running.openai().chat.completions.create(model="tiny", messages=USER)
    assert reply.choices[0].message.content == "<think>hm</think>4"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": [TOOL]}, "tools"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs"),
    ],
)
def test_a_grammar_the_engine_refuses_is_named_as_the_body_calls_it(options: dict[str, Any], param: str) -> None:
    with served(roomy(error=InvalidGrammar("no such keyword"))) as running:
        body = {"model": "tiny", "messages": USER, **options}
        response = httpx2.post(f"{running.url}/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "no such keyword",
        "type": "invalid_request_error",
        "param": param,
        "code": "invalid_grammar",
    }


def test_the_clients_parser_understands_structured_answers() -> None:
    with served(roomy(text='{"name": "Köln"}')) as running:
        reply = running.openai().chat.completions.parse(model="tiny", messages=USER, response_format=City)
        grammar = running.engine.requests[-1].grammar
    assert reply.choices[0].message.parsed == City(name="Köln")
    assert grammar is not None
    assert grammar.kind == "json_schema"
    assert json.loads(grammar.source)["properties"]["name"]["type"] == "string"


@pytest.mark.parametrize("text", [f"So. {CALL}\n{CALL}", "Grüße"])
def test_the_clients_stream_helper_puts_the_answer_together(text: str) -> None:
    with served(roomy(text=text, step=2)) as running:
        client = running.openai()
        with client.chat.completions.stream(model="tiny", messages=USER, tools=[TOOL]) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        whole = client.chat.completions.create(model="tiny", messages=USER, tools=[TOOL])
    assert "chunk" in kinds
    message, twin = final.choices[0].message, whole.choices[0].message
    assert (message.content or None) == twin.content
    told = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    assert told == [(call.function.name, call.function.arguments) for call in twin.tool_calls or []]  # type: ignore[union-attr]
