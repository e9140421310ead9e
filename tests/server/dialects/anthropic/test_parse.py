"""Bodies of Anthropic's Messages API as the chats that they stand for."""

import json
from typing import Any

import pytest

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.foreign_fields import Ignored
from prolepsis.core.errors import InvalidParameter
from prolepsis.server.dialects.anthropic.parse import MessagesBody, to_chat
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.conversation import without_attribution
from tests.server.dialects.claude_code import first_turn, second_turn

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]
TOOL = {"name": "weather", "description": "Tells it", "input_schema": {"type": "object"}}


def read(ignored: Ignored | None = None, /, **fields: object) -> MessagesBody:
    body = {"model": "tiny", "max_tokens": 9, "messages": HI, **fields}
    return parse_body(json.dumps(body).encode(), MessagesBody, Ignored() if ignored is None else ignored)


def chat(**fields: object) -> ChatBody:
    return to_chat(read(**fields))


def shown(body: ChatBody) -> list[dict[str, Any]]:
    return [message.model_dump(exclude_none=True) for message in body.messages]


@pytest.mark.parametrize("system", ["Be brief.", [{"type": "text", "text": "Be brief.", "cache_control": {}}]])
def test_a_system_text_is_the_first_message(system: object) -> None:
    expected = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert shown(chat(system=system)) == expected
    assert shown(chat(messages=[{"role": "system", "content": "Be brief."}, *HI])) == expected


def test_a_later_system_text_stays_at_its_place() -> None:
    answered = [*HI, {"role": "assistant", "content": "Hello"}]
    later = {"role": "system", "content": "7 tokens left"}
    reminder = "<system-reminder>\n7 tokens left\n</system-reminder>"
    messages = shown(chat(system="Be brief.", messages=[*answered, *HI, later]))
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1]["content"] == f"Hi\n\n{reminder}"
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"}
    messages = shown(chat(messages=[*answered, {"role": "user", "content": [result]}, later]))
    assert messages[-1] == {"role": "tool", "tool_call_id": "toolu_1", "content": f"sun\n\n{reminder}"}


def test_calls_results_and_thoughts_of_earlier_turns() -> None:
    calls = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln"}},
        {"type": "tool_use", "id": "toolu_2", "name": "weather", "input": {}},
    ]
    results = [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "sun"}]},
        {"type": "tool_result", "tool_use_id": "toolu_2", "content": "no city", "is_error": True},
        {"type": "tool_result", "tool_use_id": "toolu_3"},
        {"type": "text", "text": "Well?"},
    ]
    turns = [*HI, {"role": "assistant", "content": calls}, {"role": "user", "content": results}]
    _, answer, *rest = shown(chat(messages=turns, tools=[TOOL]))
    assert (answer["content"], answer["reasoning_content"]) == ("I look.", "hm")
    called = [(one["id"], one["function"]["name"], one["function"]["arguments"]) for one in answer["tool_calls"]]
    assert called == [("toolu_1", "weather", '{"city": "Köln"}'), ("toolu_2", "weather", "{}")]
    assert [(one["role"], one.get("tool_call_id"), one["content"]) for one in rest] == [
        ("tool", "toolu_1", "sun"),
        ("tool", "toolu_2", "Error: no city"),
        ("tool", "toolu_3", ""),
        ("user", None, "Well?"),
    ]


def test_neighbours_of_one_role_are_one_turn() -> None:
    assert shown(chat(messages=[*HI, {"role": "user", "content": [{"type": "text", "text": "there"}]}])) == [
        {"role": "user", "content": "Hi\n\nthere"}
    ]


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", False),
        ({"type": "any"}, "required", True),
        ({"type": "none"}, "none", True),
        ({"type": "tool", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}, True),
    ],
)
def test_tool_choices(choice: object, expected: object, parallel: bool) -> None:
    made = chat(tools=[TOOL], tool_choice=choice)
    found = made.tool_choice
    assert (found if isinstance(found, str) or found is None else found.model_dump()) == expected
    assert made.parallel_tool_calls is parallel


def test_tools_that_the_server_would_run_are_left_out_and_named() -> None:
    ignored = Ignored()
    body = read(ignored, tools=[TOOL, {"type": "web_search_20250305", "name": "web_search", "max_uses": 2}])
    assert [tool.function.name for tool in to_chat(body).tools or ()] == ["weather"]
    assert str(ignored) == "without effect: tools[web_search_20250305]"


def test_sampling_and_the_form_of_the_answer() -> None:
    made = chat(
        stop_sequences=["END"],
        temperature=0.5,
        top_k=3,
        top_p=0.25,
        seed=7,
        stream=True,
        metadata={"user_id": "u", "other": None},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
    )
    assert (made.max_completion_tokens, made.stop, made.temperature) == (9, ["END"], 0.5)
    assert (made.top_k, made.top_p, made.seed, made.stream, made.metadata) == (3, 0.25, 7, True, {"user_id": "u"})
    assert made.response_format is not None
    assert made.response_format.json_schema is not None
    assert made.response_format.json_schema.schema_ == {"type": "object"}


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, None),
        ({"type": "disabled"}, {"enable_thinking": False}),
        ({"type": "enabled", "budget_tokens": 2048}, {"enable_thinking": True}),
        ({"type": "adaptive"}, {"enable_thinking": True}),
    ],
)
def test_thinking_is_a_variable_of_the_template(thinking: object, expected: object) -> None:
    assert chat(thinking=thinking).chat_template_kwargs == expected


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "given: 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]}, "needs field 'name'"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": ""}]}]}, "role 'user' has blocks"),
        ({"system": [{"type": "redacted_thinking"}]}, "'system[0].type'"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "allowed: user, assistant, system"),
        ({"tools": [{"name": "a"}]}, "'tools[0].input_schema'"),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "'tools[0].name'"),
        ({"max_tokens": 0}, "'max_tokens'"),
    ],
)
def test_what_is_not_served_is_refused_by_name(fields: dict[str, object], said: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        read(**fields)
    assert said in str(caught.value)


def test_a_conversation_without_content_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="messages have no content"):
        chat(messages=[{"role": "user", "content": []}])


def test_an_answer_goes_on_where_the_last_turn_is_the_assistants() -> None:
    assert chat(messages=[*HI, {"role": "assistant", "content": "I"}]).continue_final_message
    assert not chat().continue_final_message


def chat_of(body: MessagesBody) -> ChatBody:
    """Return the chat as the model reads it."""
    made = to_chat(body)
    return made.model_copy(update={"messages": without_attribution(made.messages)})


def test_bodies_of_claude_code() -> None:
    ignored = Ignored()
    first, second = (read(ignored, **turn) for turn in (first_turn(), second_turn()))
    made = chat_of(first)
    assert [message.role for message in made.messages] == ["system", "user"]
    assert made.messages[0].content is not None
    assert made.messages[0].content.startswith("You are a command-line agent")
    assert len(made.tools or ()) == 15
    more = chat_of(second).messages
    assert more[:2] == made.messages, "the second turn begins with the first"
    assert [message.role for message in more[2:]] == ["assistant", "tool", "tool"]
    named = "tools[web_search_20250305], tools[].eager_input_streaming, thinking.budget_tokens, context_management"
    assert set(str(ignored).removeprefix("without effect: ").split(", ")) == {
        *named.split(", "),
        "output_config.effort",
    }
