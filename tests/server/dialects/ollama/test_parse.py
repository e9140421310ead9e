"""Bodies of Ollama's API as the chats and completions that they stand for."""

import json
from typing import Any

import pytest

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.foreign_fields import Ignored
from prolepsis.server.dialects.ollama.parse import OllamaChatBody, OllamaGenerateBody, parse_chat, parse_generate
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody

HI: list[dict[str, Any]] = [{"role": "user", "content": "Hi"}]


def read(ignored: Ignored | None = None, /, **fields: object) -> OllamaChatBody:
    body = {"model": "tiny", "messages": HI, **fields}
    return parse_body(json.dumps(body).encode(), OllamaChatBody, Ignored() if ignored is None else ignored)


def chat(**fields: object) -> ChatBody:
    return parse_chat(read(**fields))


def generate(**fields: object) -> ChatBody | CompletionBody:
    return parse_generate(OllamaGenerateBody.model_validate({"model": "tiny", "prompt": "Hi", **fields}))


def test_a_name_may_have_the_tag_latest() -> None:
    assert chat(model="tiny:latest").model == "tiny"
    assert chat(model="tiny:7b").model == "tiny:7b"


def test_an_answer_is_streamed_unless_it_is_not_to_be() -> None:
    assert chat().stream is True
    assert chat(stream=False).stream is False


def test_options_are_sampling_parameters() -> None:
    options = {
        "num_predict": 9,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.25,
        "min_p": 0.125,
        "repeat_penalty": 1.5,
        "presence_penalty": 0.75,
        "frequency_penalty": 0.5,
        "seed": 7,
        "stop": "END",
        "typical_p": 1,
        "mirostat": 0,
        "num_ctx": 4096,
    }
    ignored = Ignored()
    body = read(ignored, options=options)
    made = parse_chat(body)
    assert (made.max_tokens, made.temperature, made.top_k, made.top_p, made.min_p) == (9, 0.5, 3, 0.25, 0.125)
    assert (made.repetition_penalty, made.presence_penalty, made.frequency_penalty) == (1.5, 0.75, 0.5)
    assert (made.seed, made.stop) == (7, ["END"])
    assert str(ignored) == "without effect: options.num_ctx"


@pytest.mark.parametrize("limit", [None, 0, -1, -2])
def test_without_a_limit_an_answer_may_fill_the_context(limit: int | None) -> None:
    assert chat(options={"num_predict": limit, "seed": -1}).max_tokens is None
    assert generate(options={"num_predict": limit}, raw=True).max_tokens is None
    assert chat(options={"seed": -1}).seed is None


@pytest.mark.parametrize(
    ("form", "expected"),
    [("", None), (None, None), ("json", "json_object"), ({"type": "object"}, "json_schema")],
)
def test_forms_of_answers(form: object, expected: str | None) -> None:
    found = chat(format=form).response_format
    assert (found and found.type) == expected
    if found is not None and found.json_schema is not None:
        assert found.json_schema.schema_ == form


@pytest.mark.parametrize(
    ("think", "expected"),
    [
        (None, None),
        (False, {"enable_thinking": False}),
        (True, {"enable_thinking": True}),
        ("high", {"enable_thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_thinking_is_a_variable_of_the_template(think: object, expected: object) -> None:
    assert chat(think=think).chat_template_kwargs == expected


def test_results_belong_to_calls_by_name_and_order() -> None:
    calls = [{"function": {"name": name, "arguments": {"n": i}}} for i, name in enumerate(("a", "b", "a"))]
    results = [{"role": "tool", "content": str(i), "tool_name": name} for i, name in enumerate(("b", "a", "a"))]
    answer = {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls}
    one = {"id": "own", "type": "function", "function": {"name": "c", "arguments": {}}}
    again = [{"role": "assistant", "content": "", "tool_calls": [one]}, {"role": "tool", "content": "3"}]
    made = chat(messages=[*HI, answer, *results, *again]).messages
    ids = [call.id for call in made[1].tool_calls or ()]
    assert made[1].reasoning_content == "hm"
    assert [message.tool_call_id for message in made[2:5]] == [ids[1], ids[0], ids[2]]
    assert [call.function.arguments for call in made[1].tool_calls or ()] == ['{"n": 0}', '{"n": 1}', '{"n": 2}']
    assert made[6].tool_call_id == "own"


def test_a_tool_is_one_of_openai() -> None:
    function = {"name": "a.b", "description": "d", "parameters": {"type": "object"}}
    tools = chat(tools=[{"type": "function", "function": function}]).tools
    assert tools is not None
    [tool] = tools
    assert tool.function.model_dump(exclude_none=True) == function


def test_a_prompt_is_a_question_or_raw_text() -> None:
    made = generate(system="Be brief.")
    assert isinstance(made, ChatBody)
    assert [(message.role, message.content) for message in made.messages] == [("system", "Be brief."), ("user", "Hi")]
    raw = generate(raw=True, logprobs=True, top_logprobs=2, options={"num_predict": 3})
    assert isinstance(raw, CompletionBody)
    assert (raw.prompt, raw.max_tokens, raw.logprobs, raw.stream) == (["Hi"], 3, 2, True)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{**HI[0], "images": ["aa"]}]}, "'messages[0].images' is not supported"),
        ({"messages": [{**HI[0], "tool_calls": [{"function": {"name": "a"}}]}]}, "takes no field 'tool_calls'"),
        ({"options": {"mirostat": 2}}, "'options.mirostat' is not supported"),
        ({"options": {"typical_p": 0.5}}, "'options.typical_p'"),
        ({"think": "much"}, "'think'"),
        ({"format": "xml"}, "'format'"),
    ],
)
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, object], said: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        read(**fields)
    assert said in str(caught.value)


def test_a_prompt_with_what_follows_it_is_a_gap() -> None:
    made = generate(prompt="def f(", suffix="\n    return x", options={"stop": ["#"]})
    assert isinstance(made, CompletionBody)
    assert (made.prompt, made.suffix, made.stop, made.max_tokens) == (["def f("], "\n    return x", ["#"], None)


@pytest.mark.parametrize("field", ["template", "context", "images"])
def test_what_a_prompt_may_not_have(field: str) -> None:
    asked = {"model": "tiny", "prompt": "Hi"}
    with pytest.raises(RequestRefused, match="is not s"):
        parse_body(json.dumps({**asked, field: "x"}).encode(), OllamaGenerateBody, Ignored())
    assert parse_body(json.dumps({**asked, field: None}).encode(), OllamaGenerateBody).prompt == "Hi"
