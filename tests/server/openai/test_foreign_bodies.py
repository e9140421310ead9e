"""Bodies that programs made for other servers send: what is served, what is dropped with a warning, what is refused."""

import json
from typing import Any

import httpx2
import openai
import pytest

from prolepsis.control.web.foreign_fields import FOREIGN_FIELDS
from prolepsis.control.web.reply_headers import WARNING
from prolepsis.core.config import ServerConfig
from prolepsis.server.openai.responses_bodies import ResponsesBody
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from tests.server.conftest import Served
from tests.server.fakes import FakeEngine
from tests.world.site import Site

Body = dict[str, Any]
CHAT, TEXT, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BASES: dict[str, Body] = {
    CHAT: {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]},
    TEXT: {"model": "tiny", "prompt": "Hi"},
    RESPONSES: {"model": "tiny", "input": "Hi"},
}
FUNCTION: Body = {"name": "f", "parameters": {"type": "object"}}
CALL: Body = {"id": "1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.fixture(scope="module")
def sites() -> dict[bool, Site]:
    """By whether it is strict; what these tests ask leaves nothing behind."""
    return {strict: Site(config=ServerConfig(lenient=() if strict else ("fields",))) for strict in (False, True)}


@pytest.fixture
def http(sites: dict[bool, Site]) -> httpx2.AsyncClient:
    return sites[False].client()


@pytest.fixture
def strict(sites: dict[bool, Site]) -> httpx2.AsyncClient:
    return sites[True].client()


def said(message: Body) -> Body:
    return {"messages": [message, {"role": "user", "content": "Go on"}]}


@pytest.mark.parametrize(
    ("route", "changes"),
    [
        # values that ask for nothing
        (CHAT, dict.fromkeys(("audio", "functions", "store", "tools", "logprobs", "guided_json", "anything"))),
        (CHAT, {"service_tier": "auto", "modalities": ["text"], "store": False, "verbosity": "medium", "n": 1}),
        (CHAT, {"function_call": "auto", "functions": [], "web_search_options": None, "top_logprobs": 0}),
        (CHAT, {"metadata": {"a": "b"}, "parallel_tool_calls": True}),
        (CHAT, {"use_beam_search": False, "length_penalty": 1.0, "best_of": 1, "echo": False, "top_k": -1}),
        (CHAT, {"include_reasoning": True, "separate_reasoning": True, "return_hidden_states": False, "ebnf": None}),
        (CHAT, {"n_predict": -1, "repeat_penalty": 1.0, "mirostat": 0, "typical_p": 1, "grammar": "", "n_probs": 0}),
        (CHAT, {"cache_prompt": True, "id_slot": -1, "timings_per_token": False, "samplers": [], "n_keep": 0}),
        (CHAT, {"logit_bias": [], "stop": [], "stop_token_ids": [], "metadata": {}, "response_format": None}),
        (CHAT, {"chat_template_kwargs": None, "add_generation_prompt": True, "continue_final_message": None}),
        (CHAT, {"speculation": {"metrics": None, "emit": None}}),
        (CHAT, said({"role": "assistant", "content": "a", "refusal": None, "annotations": [], "audio": None})),
        (TEXT, {"suffix": "", "n": 2, "best_of": 2, "echo": False, "tools": [], "parallel_tool_calls": True}),
        (TEXT, {"add_special_tokens": True, "truncate_prompt_tokens": None, "spaces_between_special_tokens": True}),
        (RESPONSES, {"store": False, "background": False, "truncation": "disabled", "reasoning": {"effort": None}}),
        *((RESPONSES, {"reasoning": asked}) for asked in ({"effort": "none"}, {"effort": "none", "summary": None}, {})),
        (RESPONSES, {"previous_response_id": None, "conversation": None, "prompt": None, "n": 1, "include": []}),
        # OpenAI's ranges
        (CHAT, {"top_p": 0, "temperature": 2, "seed": -1, "frequency_penalty": -2, "presence_penalty": 2.0}),
        (TEXT, {"top_p": 0, "seed": -(2**63)}),
        (RESPONSES, {"top_p": 0.0, "temperature": 0}),
        (CHAT, {"max_tokens": 8.0, "n": 1.0, "seed": 3.0, "top_logprobs": 2.0, "logprobs": True}),
        (CHAT, {"max_tokens": -1}),
        (CHAT, {"max_completion_tokens": -1.0}),
        (RESPONSES, {"max_output_tokens": -1}),
        # served
        (CHAT, {"tools": [{"type": "function", "function": FUNCTION | {"name": "files/read.all"}}]}),
        (CHAT, {"response_format": {"type": "json_object", "schema": {"type": "object"}}}),
        (CHAT, {"service_tier": "flex"}),
        (CHAT, {"messages": [{"role": "user", "content": ["Hi", {"type": "text", "text": " there"}]}]}),
        (CHAT, said({"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]})),
        (CHAT, said({"role": "assistant", "content": "a", "reasoning_content": [{"type": "text", "text": "hm"}]})),
        (RESPONSES, {"instructions": [{"type": "input_text", "text": "Be brief."}]}),
        (RESPONSES, {"input": []}),
        (RESPONSES, {"include": ["message.output_text.logprobs"]}),
    ],
)  # fmt: skip
async def test_what_is_taken_without_a_word(http: httpx2.AsyncClient, route: str, changes: Body) -> None:
    reply = await http.post(route, json=BASES[route] | changes)
    assert reply.status_code == 200, reply.text
    assert WARNING not in reply.headers


@pytest.mark.parametrize(
    ("route", "changes", "named"),
    [
        (CHAT, {"temprature": 1}, "temprature (use temperature)"),
        (CHAT, {"chat_id": "c", "session_id": "s"}, "chat_id, session_id"),
        (CHAT, {"reasoning_effort": "high"}, "reasoning_effort (use chat_template_kwargs)"),
        (CHAT, {"verbosity": "low"}, "verbosity"),
        (CHAT, {"store": True}, "store"),
        (CHAT, {"user": "u"}, "user"),
        (CHAT, {"safety_identifier": "s"}, "safety_identifier"),
        (CHAT, {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}, "prompt_cache_key, prompt_cache_retention"),
        (CHAT, {"include": ["x"]}, "include"),
        (CHAT, {"service_tier": "priority"}, "service_tier[priority]"),
        (CHAT, {"client_metadata": {"a": 1}}, "client_metadata"),
        (CHAT, {"cache_prompt": False, "id_slot": 1}, "cache_prompt, id_slot"),
        (CHAT, {"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking (use chat_template_kwargs)"),
        (CHAT, {"speculation": {"depth": 1}}, "speculation.depth (use max_depth)"),
        (CHAT, {"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
        (CHAT, {"tools": [{"type": "function", "function": FUNCTION, "cache_control": {}}]}, "tools[].cache_control"),
        (CHAT, {"tools": [{"type": "function", "function": FUNCTION | {"x": 1}}]}, "tools[].function.x"),
        (CHAT, said({"role": "assistant", "tool_calls": [CALL]}), "messages[].tool_calls[].index"),
        (CHAT, said({"role": "assistant", "content": "a", "reasoning": "hm"}), "reasoning (use reasoning_content)"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"a": 1}}]}]},
         "messages[].content[].cache_control"),
        (CHAT, {"messages": [{"role": "user", "content": "a", "id": str(i)} for i in range(9)]},
         '"without effect: messages[].id"'),
        (CHAT, {f"k{i:03}": 1 for i in range(100)}, "k015 and 84 more"),
        (CHAT, {'a"\\\r\nb': 1}, "a????b"),
        (TEXT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (RESPONSES, {"client_metadata": {"a": "b"}}, "client_metadata"),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning"),
        (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
        (RESPONSES, {"max_tool_calls": 3}, "max_tool_calls"),
        (RESPONSES, {"include": ["reasoning.encrypted_content"]}, "include[reasoning.encrypted_content]"),
        (RESPONSES, {"tools": [{"type": "web_search"}, FUNCTION | {"type": "function"}]}, "tools[web_search]"),
        (RESPONSES, {"input": [{"role": "user", "content": "a", "phase": "x"}]}, "input[].phase"),
    ],
)  # fmt: skip
async def test_what_changes_nothing_is_named(
    http: httpx2.AsyncClient, strict: httpx2.AsyncClient, route: str, changes: Body, named: str
) -> None:
    body = BASES[route] | changes
    reply = await http.post(route, json=body)
    assert reply.status_code == 200, reply.text
    assert reply.headers[WARNING].startswith('299 - "without effect: ')
    assert named in reply.headers[WARNING]
    accepted = not changes.keys() - {"user", "safety_identifier"}
    refused = await strict.post(route, json=body)
    assert refused.status_code == (200 if accepted else 400)
    assert WARNING not in refused.headers


@pytest.mark.parametrize(
    ("changes", "code", "param", "named"),
    [
        ({"temprature": 1}, "unknown_parameter", "temprature", "'temperature'"),
        ({"zzz": 1}, "unknown_parameter", "zzz", "allowed: "),
        ({"zzz": None}, "unknown_parameter", "zzz", "allowed: "),
        ({"reasoning_effort": "high"}, "unsupported_parameter", "reasoning_effort", "'none' or null"),
        ({"store": True}, "unsupported_parameter", "store", "false"),
        ({"verbosity": "low"}, "unsupported_parameter", "verbosity", "'medium'"),
        ({"speculation": {"depth": 1}}, "unknown_parameter", "speculation.depth", "max_depth"),
        ({"stream": True, "stream_options": {"usage": True}}, "unknown_parameter", "stream_options.usage", "include"),
    ],
)
async def test_a_strict_server_refuses_it_by_name(
    strict: httpx2.AsyncClient, changes: Body, code: str, param: str, named: str
) -> None:
    reply = await strict.post(CHAT, json=BASES[CHAT] | changes)
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (400, code, param)
    assert named in error["message"]


@pytest.mark.parametrize(
    ("route", "changes", "param", "named"),
    [
        (CHAT, {"n_predict": 5}, "n_predict", "use 'max_tokens'"),
        (RESPONSES, {"n_predict": 5}, "n_predict", "use 'max_output_tokens'"),
        (CHAT, {"repeat_penalty": 1.3}, "repeat_penalty", "use 'repetition_penalty'"),
        (CHAT, {"guided_whitespace_pattern": " *"}, "guided_whitespace_pattern", "not supported"),
        (CHAT, {"max_output_tokens": 5}, "max_output_tokens", "use 'max_tokens'"),
        (RESPONSES, {"max_tokens": 5}, "max_tokens", "use 'max_output_tokens'"),
        (RESPONSES, {"logprobs": True}, "logprobs", "use 'include'"),
        (CHAT, {"stop_sequences": ["a"]}, "stop_sequences", "use 'stop'"),
        (CHAT, {"enable_thinking": False}, "enable_thinking", "use 'chat_template_kwargs'"),
        (CHAT, {"functions": [FUNCTION]}, "functions", "use 'tools'"),
        (CHAT, {"use_beam_search": True}, "use_beam_search", "allowed: false or null"),
        (CHAT, {"modalities": ["text", "audio"]}, "modalities", "not supported"),
        (RESPONSES, {"echo": 0}, "echo", "false"),
        (CHAT, said({"role": "assistant", "content": "a", "refusal": "no"}), "messages[0].refusal", "not supported"),
        (TEXT, {"n": 2, "best_of": 3}, "best_of", "allowed: 2, the value of n, or null"),
        (TEXT, {"top_logprobs": 3}, "top_logprobs", "use 'logprobs'"),
        (TEXT, {"suffix": "x"}, "suffix", "no marks"),
        (RESPONSES, {"store": True}, "store", "allowed: false"),
        (RESPONSES, {"background": True}, "background", "allowed: false"),
        (RESPONSES, {"previous_response_id": "r"}, "previous_response_id", "not found"),
        (RESPONSES, {"conversation": "c"}, "conversation", "use 'previous_response_id'"),
        (CHAT, {"previous_response_id": "r"}, "previous_response_id", "not supported"),
        (CHAT, {"background": True}, "background", "not supported"),
    ],
)
async def test_what_asks_for_another_answer_is_refused(
    sites: dict[bool, Site], route: str, changes: Body, param: str, named: str
) -> None:
    for site in sites.values():
        reply = await site.client().post(route, json=BASES[route] | changes)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
        assert named in reply.json()["error"]["message"]


def test_fields_of_one_endpoint_are_known_where_another_lacks_them() -> None:
    """Otherwise such a field would be dropped as one that changes nothing."""
    kinds = (ChatBody, CompletionBody, ResponsesBody)
    fields = [set(kind.model_fields) for kind in kinds]
    for mine in fields:
        assert set[str]().union(*fields) - mine <= FOREIGN_FIELDS.keys()


async def test_operators_bodies_stay_strict(http: httpx2.AsyncClient) -> None:
    reply = await http.post("/admin/policy/explain", json={"request": BASES[CHAT] | {"chat_id": 1}, "tenat": "a"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unknown_parameter")
    explained = await http.post("/admin/policy/explain", json={"request": BASES[CHAT] | {"chat_id": 1}})
    assert explained.status_code == 200, explained.text


async def test_an_answer_longer_than_the_context_is_clamped_by_a_setting() -> None:
    engine = FakeEngine()
    room = engine.info.max_model_len - len(b"user:Hi\n")
    async with Site(engine, ServerConfig(lenient=("fields", "clamp_max_tokens"))).http as http:
        reply = await http.post(CHAT, json=BASES[CHAT] | {"max_tokens": 600})
        texts = await http.post(TEXT, json={"model": "tiny", "prompt": ["Hi", "Hello"], "max_tokens": 600})
        too_long = await http.post(CHAT, json=BASES[CHAT] | {"max_tokens": 600, "min_tokens": room + 1})
    assert [reply.status_code, texts.status_code, too_long.status_code] == [200, 200, 400]
    assert engine.requests[0].params.max_tokens == room
    assert [one.params.max_tokens for one in engine.requests[1:]] == [room + 6, room + 3]
    assert reply.headers[WARNING].count("max_tokens is 600") == 1
    assert texts.headers[WARNING].count("max_tokens is 600") == 1


async def test_a_schema_of_a_json_object_holds() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    engine = FakeEngine(text='{"a": 1}')
    async with Site(engine).http as http:
        form = {"type": "json_object", "schema": schema}
        await http.post(CHAT, json=BASES[CHAT] | {"response_format": form})
        await http.post(RESPONSES, json=BASES[RESPONSES] | {"text": {"format": form}})
    for request in engine.requests:
        assert request.grammar is not None
        assert json.loads(request.grammar.source) == schema | {"additionalProperties": False}


@pytest.mark.parametrize("route", [CHAT, RESPONSES])
async def test_padded_events_have_sizes_that_say_nothing(route: str) -> None:
    options = {"stream": True, "stream_options": {"include_obfuscation": True}}
    engine = FakeEngine(text="a bb cccc " * 9, step=4)
    async with Site(engine).http as http:
        plain = await http.post(route, json=BASES[route] | {"stream": True})
        reply = await http.post(route, json=BASES[route] | options)
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if '"obfuscation"' in line]
    assert len(lines) > 5
    assert {len(line.encode()) % 128 for line in lines} == {0}
    assert "obfuscation" not in plain.text


async def test_flex_is_the_economy_tier() -> None:
    async with Site().http as http:
        for tier in ("flex", "default"):
            assert (await http.post(CHAT, json=BASES[CHAT] | {"service_tier": tier})).status_code == 200
        shown = (await http.get("/metrics")).text
    waits = {line.partition(" ")[0]: line.split()[-1] for line in shown.splitlines() if "wait_seconds_count" in line}
    assert {name.split('"')[1] for name, count in waits.items() if float(count)} == {"economy", "standard"}


WORDS = ("This model's maximum context length is", "context_length_exceeded")
"""What litellm, with it aider, and LangChain look for."""


def test_clients_know_an_exhausted_context_by_its_words(shared: Served) -> None:
    create: Any = shared.openai().chat.completions.create
    with pytest.raises(openai.BadRequestError) as refused:
        create(**BASES[CHAT], max_tokens=10_000)
    assert [word for word in WORDS if word not in str(refused.value)] == []
