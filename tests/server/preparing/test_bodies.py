"""Bad input over HTTP: one error in OpenAI's shape that names what was given, never a 5xx."""

import json
import re
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.intake import body_limit
from prolepsis.core.config import ServerConfig
from prolepsis.server.openai.responses_bodies import ResponsesBody
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from tests.server.fakes import FakeEngine
from tests.world.site import Site

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "Hi"}

IMAGE = {"role": "user", "content": [{"type": "image_url"}]}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}
NAMED_G = {"type": "function", "function": {"name": "g"}}
STRICT_ARRAY = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array"}, "strict": True}}
TOO_LONG = "This model's maximum context length is 512 tokens"
"""OpenAI's words, by which clients find an exhausted context."""
TOOL_CALL = {"role": "user", "content": "x", "tool_calls": [1]}


@pytest.fixture(scope="module")
def site() -> Site:
    """One application: what is refused leaves nothing behind."""
    return Site(FakeEngine(text="ok"), ServerConfig(max_body_bytes=4096))


@pytest.fixture
def http(site: Site) -> httpx2.AsyncClient:
    return site.client()


def assert_error(response: httpx2.Response, status: int, code: str, param: str | None, *named: str) -> None:
    assert response.status_code == status, response.text
    assert list(response.json()) == ["error"]
    error = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    for name in named:
        assert name in error["message"]


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", "invalid_json"),
        (b"{", "invalid_json"),
        (b'{"model": "tiny", "prompt": NaN}', "invalid_json"),
        (b"[" * 4000, "invalid_json"),
        (b'{"model": "tiny", "model": "other", "prompt": "Hi"}', "invalid_json"),
        (b'{"model": "tiny", "prompt": "Hi", "logit_bias": {"1": 1, "1": -1}}', "invalid_json"),
        (b'{"n": ' + b"1" * 4000 + b"}", "invalid_value"),
        (b'{"prompt": "\\ud800"}', "invalid_json"),
        (b'{"prompt": "\xff"}', "invalid_utf8"),
        (b"null", "invalid_type"),
        (b"[]", "invalid_type"),
    ],
)
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
async def test_broken_bodies(http: httpx2.AsyncClient, route: str, raw: bytes, code: str) -> None:
    response = await http.post(route, content=raw)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == code


@pytest.mark.parametrize(
    ("changes", "code", "param", "named"),
    [
        ({"tools": [{}]}, "missing_required_parameter", "tools[0].type", []),
        ({"tools": [TOOL, TOOL]}, "invalid_value", "tools", ["'f'", "twice"]),
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "invalid_value", "tools[0].type", ["function"]),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "invalid_value", "tools[0].function.name", []),
        ({"tools": [STRICT]}, "invalid_value", "tools[0].function.parameters", ["additionalProperties"]),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice", ["tools"]),
        ({"tools": [TOOL], "tool_choice": "sometimes"}, "invalid_value", "tool_choice",
         ["sometimes", "allowed: none, auto, required"]),
        ({"tools": [TOOL], "tool_choice": NAMED_G}, "invalid_value", "tool_choice", ["'g'", "f"]),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "invalid_value", "tool_choice", ["function"]),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type", ["json_object"]),
        ({"response_format": {"type": "json_schema"}}, "invalid_value", "response_format", ["json_schema"]),
        ({"response_format": STRICT_ARRAY}, "invalid_value", "response_format.json_schema.schema", ["root"]),
        ({"structured_outputs": {}}, "invalid_value", "structured_outputs", ["exactly one"]),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "invalid_value", "structured_outputs", ["regex"]),
        ({"structured_outputs": {"json": "{"}}, "invalid_value", "structured_outputs.json", ["JSON"]),
        ({"structured_outputs": {"json": [1]}}, "invalid_type", "structured_outputs.json", []),
        ({"structured_outputs": {"structural_tag": {"structures": [], "triggers": ["<"]}}}, "invalid_value",
         "structured_outputs.structural_tag.structures", []),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "invalid_value",
         "structured_outputs", ["response_format"]),
        ({"structured_outputs": {"grammar": "start: /a/"}, "tools": [TOOL]}, "invalid_value",
         "structured_outputs.grammar", ["tools"]),
        ({"request_id": "a b"}, "invalid_value", "request_id", []),
        ({"cache_salt": ""}, "invalid_value", "cache_salt", []),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a", []),
        ({"service_tier": 3}, "invalid_value", "service_tier", ["auto", "flex"]),
        ({"best_of": 2}, "unsupported_parameter", "best_of", []),
        ({"modalities": ["audio"]}, "unsupported_parameter", "modalities", []),
        ({"web_search_options": {}}, "unsupported_parameter", "web_search_options", []),
        ({"echo": 0}, "invalid_type", "echo", []),
        ({"truncation_side": "middle"}, "invalid_value", "truncation_side", ["left", "right"]),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options", ["stream"]),
        ({"speculation": {"mode": "max"}}, "invalid_value", "speculation.mode", ["allowed: auto, off"]),
        ({"speculation": {"emit": "word"}}, "invalid_value", "speculation.emit", ["allowed: block, token"]),
        ({"speculation": {"proposer": "magic"}}, "invalid_value", "speculation.proposer", ["magic", "suffix"]),
        ({"temperature": "hot"}, "invalid_type", "temperature", ["'hot'", "number"]),
        ({"temperature": "0.5"}, "invalid_type", "temperature", ["'0.5'"]),
        ({"temperature": 3}, "invalid_value", "temperature", ["3", "0 to 2"]),
        ({"top_p": -0.1}, "invalid_value", "top_p", ["0 to 1"]),
        ({"n": 0}, "invalid_value", "n", ["1"]),
        ({"n": 1.5}, "invalid_type", "n", ["1.5"]),
        ({"n": True}, "invalid_type", "n", ["true"]),
        ({"n": 10**30}, "invalid_value", "n", []),
        ({"seed": -(2**63) - 1}, "invalid_value", "seed", []),
        ({"max_tokens": 0}, "invalid_value", "max_tokens", ["is 0", "1 or more", "prompt_logprobs"]),
        ({"max_tokens": -2}, "invalid_value", "max_tokens", ["0; given: -2."]),
        ({"max_tokens": 600}, "context_length_exceeded", "messages", [TOO_LONG, "600"]),
        ({"max_tokens": 4, "min_tokens": 5}, "invalid_value", "min_tokens", ["5", "4"]),
        ({"max_tokens": 4, "max_completion_tokens": 5}, "invalid_value", "max_completion_tokens", []),
        ({"min_tokens": 10**6}, "context_length_exceeded", "messages", [TOO_LONG]),
        ({"stop": ""}, "invalid_value", "stop", ["empty"]),
        ({"stop": ["x"] * 17}, "invalid_value", "stop", ["16"]),
        ({"stop": "x" * 1025}, "invalid_value", "stop", ["1024"]),
        ({"n": 129}, "invalid_value", "n", ["128"]),
        ({"bad_words": ["x"]}, "unsupported_parameter", "bad_words", ["use 'logit_bias'"]),
        ({"stop": [1]}, "invalid_type", "stop[0]", []),
        ({"stop_token_ids": [999]}, "invalid_value", "stop_token_ids", ["999", "256"]),
        ({"logit_bias": {"999": 1}}, "invalid_value", "logit_bias", ["999"]),
        ({"logit_bias": {"cat": 1}}, "invalid_value", "logit_bias", ["cat"]),
        ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias", ["101"]),
        ({"logit_bias": {"1": "x"}}, "invalid_type", "logit_bias.1", ["a number"]),
        ({"top_logprobs": 3}, "invalid_value", "top_logprobs", ["logprobs"]),
        ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs", ["20"]),
        ({"logprobs": 3}, "invalid_type", "logprobs", []),
        ({"prediction": {"type": "content"}}, "missing_required_parameter", "prediction.content", []),
        ({"messages": []}, "invalid_value", "messages", ["one or more", "given: []"]),
        ({"messages": "Hi"}, "invalid_type", "messages", []),
        ({"messages": ["Hi"]}, "invalid_type", "messages[0]", []),
        ({"messages": [{"role": "user"}]}, "invalid_value", "messages[0]", ["'content'"]),
        ({"messages": [{"role": "user", "content": None}]}, "invalid_value", "messages[0]", ["'content'"]),
        ({"messages": [{"role": "tool", "content": "4"}]}, "invalid_value", "messages[0]", ["tool_call_id"]),
        ({"messages": [{"role": "user", "content": "x", "refusal": "no"}]}, "unsupported_parameter",
         "messages[0].refusal", []),
        ({"messages": [{"role": "robot", "content": ""}]}, "invalid_value", "messages[0].role",
         ["'robot'", "allowed: system, developer, user"]),
        ({"messages": [{"role": "a b", "content": ""}]}, "invalid_value", "messages[0].role", ["'a b'"]),
        ({"continue_final_message": True, "add_generation_prompt": True}, "invalid_value", None, ["one of them"]),
        ({"continue_final_message": True, "messages": [{"role": "tool", "content": "4", "tool_call_id": "1"}]},
         "invalid_value", "continue_final_message", ["a text"]),
        ({"messages": [IMAGE]}, "invalid_value", "messages[0].content", ["text"]),
        ({"messages": [{"role": "user", "content": "refuse me"}]}, "invalid_value", "messages", ["template"]),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "context_length_exceeded", "messages", [TOO_LONG]),
        ({"messages": [TOOL_CALL]}, "invalid_type", "messages[0].tool_calls[0]", []),
        ({"messages": None}, "invalid_type", "messages", []),
        ({"prompt": "Hi"}, "unsupported_parameter", "prompt", []),
    ],
)  # fmt: skip
async def test_chat_refusals(
    http: httpx2.AsyncClient, changes: dict[str, object], code: str, param: str, named: list[str]
) -> None:
    assert_error(await http.post("/v1/chat/completions", json=CHAT | changes), 400, code, param, *named)


@pytest.mark.parametrize(
    ("changes", "code", "param", "named"),
    [
        ({"prompt": ""}, "invalid_value", "prompt", ["no tokens"]),
        ({"prompt": []}, "invalid_value", "prompt", ["no tokens"]),
        ({"prompt": ["a"] * 65}, "invalid_value", "prompt", ["65 prompts", "64"]),
        ({"prompt": ["a", "b"], "n": 65}, "invalid_value", "n", ["65", "128"]),
        ({"prompt": ["a", ""]}, "invalid_value", "prompt", ["no tokens"]),
        ({"echo": True, "suffix": "x"}, "invalid_value", "echo", ["suffix"]),
        ({"truncate_prompt_tokens": 2, "suffix": "x"}, "invalid_value", "truncate_prompt_tokens", ["suffix"]),
        ({"suffix": "x"}, "invalid_value", "suffix", ["no marks to fill a middle by"]),
        ({"prompt": [1, "b"]}, "invalid_value", "prompt", ["token ids"]),
        ({"prompt": [True]}, "invalid_value", "prompt", []),
        ({"prompt": [257]}, "invalid_value", "prompt", ["257", "256"]),
        ({"prompt": [10**25]}, "invalid_value", "prompt", []),
        ({"prompt": [-1]}, "invalid_value", "prompt", ["-1"]),
        ({"prompt": [1] * 512}, "context_length_exceeded", "prompt", [TOO_LONG]),
        ({"prompt": 3}, "invalid_value", "prompt", ["3"]),
        ({"best_of": 2}, "invalid_value", "best_of", ["1, the value of n"]),
        ({"prediction": {"type": "content", "content": "x"}}, "unsupported_parameter", "prediction", []),
        ({"tools": [TOOL]}, "unsupported_parameter", "tools", []),
        ({"logprobs": 21}, "invalid_value", "logprobs", ["20"]),
        ({"model": 0}, "invalid_type", "model", []),
    ],
)
async def test_completion_refusals(
    http: httpx2.AsyncClient, changes: dict[str, object], code: str, param: str, named: list[str]
) -> None:
    assert_error(await http.post("/v1/completions", json=TEXT | changes), 400, code, param, *named)


async def test_unknown_model_route_method_and_size(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/completions", json=TEXT | {"model": "gpt"})
    assert_error(response, 404, "model_not_found", "model", "gpt", "tiny")
    assert_error(await http.get("/v1/models/gpt"), 404, "model_not_found", "model")
    assert_error(await http.get("/v2/nothing"), 404, "unknown_url", None, "GET /v2/nothing")
    wrong = await http.get("/v1/completions")
    assert_error(wrong, 405, "method_not_allowed", None, "GET /v1/completions")
    assert wrong.headers["allow"] == "POST"
    large = await http.post("/v1/completions", json=TEXT | {"prompt": "x" * 5000})
    assert_error(large, 413, "request_too_large", None, "4096")


async def test_what_is_not_served_is_not_tried_again(http: httpx2.AsyncClient) -> None:
    """SDKs retry every 5xx; a 501 stays one."""
    paths = "embedding embeddings rerank v1/embeddings v1/rerank v1/moderations v1/images/generations v1/audio/speech"
    for path in paths.split():
        refused = await http.post(f"/{path}", json={"model": "tiny", "input": "x"})
        assert_error(refused, 404, "unknown_url", None, f"/{path}", "generates text")


async def test_missing_fields_are_named(http: httpx2.AsyncClient) -> None:
    response = await http.post("/v1/completions", json={"model": "tiny"})
    assert_error(response, 400, "missing_required_parameter", "prompt", "prompt")
    response = await http.post("/v1/chat/completions", json={"model": "tiny"})
    assert_error(response, 400, "missing_required_parameter", "messages", "messages")


@pytest.mark.parametrize("given", [{}, {"model": None}, {"model": ""}])
async def test_without_a_name_the_first_model_answers(http: httpx2.AsyncClient, given: dict[str, Any]) -> None:
    asked = {"/v1/completions": {"prompt": "Hi"}, "/v1/chat/completions": {"messages": CHAT["messages"]},
             "/v1/responses": {"input": "Hi"}}  # fmt: skip
    for path, body in asked.items():
        response = await http.post(path, json={**body, **given})
        assert (response.status_code, response.json()["model"]) == (200, "tiny")
    counted = await http.post("/v1/responses/input_tokens", json={"input": "Hi", **given})
    assert counted.json()["input_tokens"] > 0


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
)
FIELDS = sorted({*ChatBody.model_fields, *CompletionBody.model_fields, "echo", "store"})
LIKELY = st.sampled_from(
    [0, 1, -1, 2, 0.5, "tiny", True, None, [], {}, ["a"], [1], {"1": 1}, {"type": "content", "content": "x"}, "auto",
     {"mode": "auto", "max_depth": 0, "metrics": True}, {"include_usage": True}, [{"role": "user", "content": "é"}]]
)  # fmt: skip


@given(
    base=st.sampled_from([CHAT, TEXT]),
    changes=st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), LIKELY | VALUES, max_size=4),
)
async def test_no_body_is_a_server_error(site: Site, base: dict[str, Any], changes: dict[str, Any]) -> None:
    route = "/v1/chat/completions" if base is CHAT else "/v1/completions"
    response = await site.client().post(route, content=json.dumps({**base, **changes}).encode())
    assert response.status_code < 500, response.text
    if response.status_code == 200:
        assert "error" not in response.text
    else:
        assert isinstance(response.json()["error"]["code"], str)


@given(raw=st.binary(max_size=60))
async def test_no_bytes_are_a_server_error(site: Site, raw: bytes) -> None:
    response = await site.client().post("/v1/completions", content=raw)
    assert 400 <= response.status_code < 500


@pytest.mark.parametrize(
    ("changes", "param", "named"),
    [
        ({"stop": [str(i) for i in range(10_000)]}, "stop", "16"),
        ({"logit_bias": {str(i): 1 for i in range(49_152)}}, "logit_bias", "has 49152 tokens; allowed: at most 4096"),
    ],
)
def test_many_entries_are_refused_by_name(changes: dict[str, Any], param: str, named: str) -> None:
    with pytest.raises(RequestRefused, match=named) as caught:
        parse_body(json.dumps({"model": "tiny", "prompt": "Hi"} | changes).encode(), CompletionBody)
    assert caught.value.param == param


async def test_a_body_larger_than_a_full_context_needs_is_refused() -> None:
    engine, url = FakeEngine(), "/v1/completions"
    most = body_limit(engine.info.max_model_len)
    async with Site(engine).http as http:
        whole = json.dumps(TEXT).encode()
        assert (await http.post(url, content=whole + b" " * (most - len(whole)))).status_code == 200
        assert_error(await http.post(url, content=b" " * (most + 1)), 413, "request_too_large", None, str(most))


@pytest.mark.parametrize(
    ("kind", "body", "named"),
    [
        (ChatBody, CHAT | {f"k{i}": 1 for i in range(1000)}, "'k0'"),
        (ChatBody, CHAT | {"messages": [{"role": "user", **{f"k{i}": 1 for i in range(1000)}}]}, "'messages[0].k0'"),
        (ChatBody, CHAT | {"tool_choice": {f"k{i}": 1 for i in range(1000)}}, "'tool_choice.k0'"),
        (ResponsesBody, {"model": "tiny", "input": "Hi", "include": [1] * 1000}, "'include[0]'"),
        (ResponsesBody, {"model": "tiny", "input": [{"type": "reasoning", "summary": [1] * 1000}]}, "summary[0]'"),
        (ChatBody, CHAT | {"messages": CHAT["messages"] * 2049}, "2048"),
    ],
)
def test_only_the_first_of_many_faults_is_reported(kind: type[Body], body: dict[str, object], named: str) -> None:
    with pytest.raises(RequestRefused, match=re.escape(named)) as refused:
        parse_body(json.dumps(body).encode(), kind)
    cause = refused.value.__context__
    assert not isinstance(cause, ValidationError) or cause.error_count() == 1


@pytest.mark.parametrize(
    ("kind", "body", "allowed"),
    [
        (ChatBody, CHAT | {"messages": [{"role": "user"}]}, "a string or a list"),
        (ChatBody, CHAT | {"structured_outputs": {}}, "exactly one of json"),
        (ResponsesBody, {"model": "tiny", "input": None}, "a string or a list"),
    ],
)
def test_what_was_given_is_named_once(kind: type[Body], body: dict[str, object], allowed: str) -> None:
    with pytest.raises(RequestRefused, match=allowed) as refused:
        parse_body(json.dumps(body).encode(), kind)
    assert str(refused.value).count("given: ") == 1


def test_long_keys_are_quoted_shortened() -> None:
    key = "model role " * 20_000
    for body in (f'{{"{key}": 1, "{key}": 1}}', f'{{"{key}": 1}}'):
        with pytest.raises(RequestRefused) as refused:
            parse_body(body.encode(), ChatBody)
        assert len(str(refused.value)) < 2000
