"""137 calls of openai-python, as data: what a text server can meet, with default and edge values."""

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openai
from pydantic import BaseModel

Fields = Mapping[str, Any]
Check = Callable[[Any], bool]
MOST = 8
"""Tokens of an answer, where a call does not say."""
ENOUGH = 400
"""Tokens in which an answer ends by itself: the SDK's helpers raise where it is cut."""
HI = [{"role": "user", "content": "Say hi."}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
FLAT_WEATHER = {"type": "function", "strict": False, **WEATHER["function"]}  # type: ignore[dict-item]
WITH_CALL = [
    *HI,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "Sunny."}]},
]
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}},
    "required": ["name"],
    "additionalProperties": False,
}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


class City(BaseModel):
    """A city that the model names."""

    name: str


class Answer(BaseModel):
    """A yes or a no."""

    yes: bool


@dataclass(frozen=True, slots=True)
class Call:
    """A call, what its result must hold, and how the answer would change if what it asks for were left out."""

    name: str
    run: Callable[[openai.OpenAI, str], Any]
    holds: Check = lambda result: True
    changes: str = ""


def _messages(*parts: object) -> Fields:
    return {"messages": [{"role": "user", "content": list(parts)}]}


def _text(result: Any) -> bool:
    return result.choices[0].message.content is not None


def _has_logprobs(result: Any) -> bool:
    return len(result.choices[0].logprobs.content) > 0


def _calls(result: Any) -> bool:
    return bool(result.choices[0].message.tool_calls[0].function.name == "get_weather")


# What each call adds to a chat of one message; then what the result must hold, or how the answer would change.
CHAT: Sequence[tuple[str, Fields, Check | str]] = (
    ("plain", {}, _text),
    ("max_completion_tokens", {"max_completion_tokens": 4}, lambda r: r.usage.completion_tokens <= 4),
    ("max_tokens past the context", {"max_tokens": 1_000_000}, "the answer would end earlier"),
    ("temperature 0", {"temperature": 0}, _text),
    ("temperature 2", {"temperature": 2}, _text),
    ("top_p 0", {"top_p": 0}, _text),
    ("n 3", {"n": 3, "temperature": 1}, lambda r: len(r.choices) == 3),
    ("seed", {"seed": 7}, _text),
    ("seed -1", {"seed": -1}, _text),
    ("seed 2^63 - 1", {"seed": 2**63 - 1}, _text),
    ("frequency_penalty 2", {"frequency_penalty": 2}, _text),
    ("presence_penalty -2", {"presence_penalty": -2.0}, _text),
    ("logit_bias", {"logit_bias": {"17": -100, "18": 100}}, _text),
    ("logit_bias empty", {"logit_bias": {}}, _text),
    ("stop text", {"stop": "hi"}, lambda r: "hi" not in r.choices[0].message.content),
    ("stop four texts", {"stop": ["a", "b", "\n", "."]}, _text),
    ("stop empty list", {"stop": []}, _text),
    ("logprobs", {"logprobs": True}, _has_logprobs),
    (
        "top_logprobs 20",
        {"logprobs": True, "top_logprobs": 20},
        lambda r: len(r.choices[0].logprobs.content[0].top_logprobs) == 20,
    ),
    ("top_logprobs 0", {"logprobs": True, "top_logprobs": 0}, _has_logprobs),
    ("user", {"user": "u1"}, _text),
    ("safety_identifier, prompt_cache_key", {"safety_identifier": "s", "prompt_cache_key": "k"}, _text),
    ("metadata", {"metadata": {"job": "1"}}, _text),
    ("store", {"store": True, "metadata": {"job": "1"}}, _text),
    ("service_tier flex", {"service_tier": "flex"}, _text),
    ("service_tier priority", {"service_tier": "priority"}, _text),
    ("modalities text", {"modalities": ["text"]}, _text),
    (
        "modalities audio",
        {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}},
        "it would have no audio",
    ),
    ("reasoning_effort low", {"reasoning_effort": "low"}, _text),
    ("verbosity low", {"verbosity": "low"}, _text),
    ("web_search_options", {"web_search_options": {}}, "it would know nothing of the web"),
    ("prediction", {"prediction": {"type": "content", "content": "hi"}}, _text),
    ("prompt_cache_retention", {"prompt_cache_retention": "24h"}, _text),
    ("response_format text", {"response_format": {"type": "text"}}, _text),
    (
        "response_format json_object",
        {"response_format": {"type": "json_object"}, "max_tokens": 40},
        lambda r: r.choices[0].message.content.lstrip().startswith("{"),
    ),
    (
        "response_format json_schema",
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "c", "strict": True, "schema": CITY}},
            "max_tokens": 40,
        },
        lambda r: "name" in json.loads(r.choices[0].message.content),
    ),
    ("tools auto", {"tools": [WEATHER]}, lambda r: r.choices[0].message is not None),
    ("tools required", {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}, _calls),
    (
        "tools named",
        {
            "tools": [WEATHER],
            "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
            "max_tokens": 60,
        },
        _calls,
    ),
    ("tools none", {"tools": [WEATHER], "tool_choice": "none"}, _text),
    (
        "tools allowed",
        {
            "tools": [WEATHER],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                },
            },
            "max_tokens": 60,
        },
        _calls,
    ),
    ("tools one at a time", {"tools": [WEATHER], "parallel_tool_calls": False}, lambda r: True),
    ("tools empty list", {"tools": []}, _text),
    ("tool without parameters", {"tools": [{"type": "function", "function": {"name": "now"}}]}, lambda r: True),
    (
        "tools custom",
        {"tools": [{"type": "custom", "custom": {"name": "patch", "description": "Edits."}}]},
        "the model could not call it",
    ),
    (
        "functions, before tools",
        {"functions": [WEATHER["function"]], "function_call": "auto"},
        "the model could not call them",
    ),
    ("history with calls", {"messages": WITH_CALL}, _text),
    ("content of parts", _messages({"type": "text", "text": "Say"}, {"type": "text", "text": " hi."}), _text),
    ("content empty", {"messages": [{"role": "user", "content": ""}]}, _text),
    ("content empty list", _messages(), _text),
    ("developer role", {"messages": [{"role": "developer", "content": "Be brief."}, *HI]}, _text),
    (
        "system parts, names",
        {
            "messages": [
                {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
                {"role": "user", "name": "ann", "content": "Hi"},
            ]
        },
        _text,
    ),
    ("assistant last", {"messages": [*HI, {"role": "assistant", "content": "Hi"}]}, _text),
    (
        "image",
        _messages({"type": "image_url", "image_url": {"url": PIXEL}}, {"type": "text", "text": "What is it?"}),
        "the model would not see it",
    ),
    (
        "file",
        _messages({"type": "file", "file": {"file_data": "data:application/pdf;base64,AA==", "filename": "a.pdf"}}),
        "the model would not read it",
    ),
    (
        "audio",
        _messages({"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}),
        "the model would not hear it",
    ),
)

TEXTS: Sequence[tuple[str, Fields, Check | str]] = (
    ("plain", {}, lambda r: r.choices[0].text is not None),
    ("two prompts", {"prompt": ["Once", "Twice"]}, lambda r: len(r.choices) == 2),
    ("token ids", {"prompt": [10, 11, 12]}, lambda r: r.usage.prompt_tokens == 3),
    ("lists of token ids", {"prompt": [[10, 11], [12]]}, lambda r: len(r.choices) == 2),
    ("empty prompt", {"prompt": ""}, "there is nothing to continue"),
    ("echo", {"echo": True}, lambda r: r.choices[0].text.startswith("Once")),
    (
        "echo, logprobs, max_tokens 0",
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        lambda r: r.choices[0].logprobs.token_logprobs[0] is None,
    ),
    ("max_tokens 0", {"max_tokens": 0}, lambda r: r.choices[0].text == ""),
    ("logprobs 5", {"logprobs": 5}, lambda r: len(r.choices[0].logprobs.top_logprobs[0]) >= 5),
    ("n 2", {"n": 2, "temperature": 1}, lambda r: len(r.choices) == 2),
    ("best_of equal to n", {"n": 2, "best_of": 2, "temperature": 1}, lambda r: len(r.choices) == 2),
    ("best_of above n", {"n": 1, "best_of": 3, "temperature": 1}, "another sample would be shown"),
    ("suffix null", {"suffix": None}, lambda r: True),
    ("suffix", {"suffix": " and they lived."}, "the model would not know what follows"),
    (
        "penalties, bias, stop, seed, user",
        {"frequency_penalty": 1, "presence_penalty": 1, "logit_bias": {"17": 1}, "stop": ["."], "seed": 1, "user": "u"},
        lambda r: True,
    ),
)

RESPONSES: Sequence[tuple[str, Fields, Check | str]] = (
    ("plain", {}, lambda r: r.output_text is not None),
    ("input of messages", {"input": HI}, lambda r: r.status in {"completed", "incomplete"}),
    (
        "input of parts",
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}]},
        lambda r: True,
    ),
    ("instructions", {"instructions": "Be brief."}, lambda r: True),
    (
        "metadata, user, safety_identifier",
        {"metadata": {"a": "b"}, "user": "u", "safety_identifier": "s"},
        lambda r: r.metadata == {"a": "b"},
    ),
    ("store false", {"store": False}, lambda r: True),
    ("include encrypted reasoning", {"include": ["reasoning.encrypted_content"], "store": False}, lambda r: True),
    (
        "include logprobs",
        {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
        lambda r: len(r.output[-1].content[0].logprobs) > 0,
    ),
    ("truncation auto", {"truncation": "auto"}, "the oldest items would stay"),
    ("reasoning", {"reasoning": {"effort": "low", "summary": "auto"}}, lambda r: True),
    ("text format text, verbosity", {"text": {"format": {"type": "text"}, "verbosity": "low"}}, lambda r: True),
    (
        "text format json_schema",
        {
            "text": {"format": {"type": "json_schema", "name": "c", "strict": True, "schema": CITY}},
            "max_output_tokens": 40,
        },
        lambda r: "name" in json.loads(r.output_text),
    ),
    (
        "text format json_object",
        {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 40},
        lambda r: r.output_text.lstrip().startswith("{"),
    ),
    ("tools auto", {"tools": [FLAT_WEATHER]}, lambda r: True),
    (
        "tools required",
        {"tools": [FLAT_WEATHER], "tool_choice": "required", "max_output_tokens": 60},
        lambda r: r.output[-1].name == "get_weather",
    ),
    ("tools custom", {"tools": [{"type": "custom", "name": "patch"}]}, lambda r: True),
    ("tools web_search", {"tools": [{"type": "web_search"}]}, lambda r: True),
    ("max_tool_calls", {"tools": [FLAT_WEATHER], "max_tool_calls": 1}, lambda r: True),
    ("parallel_tool_calls false", {"tools": [FLAT_WEATHER], "parallel_tool_calls": False}, lambda r: True),
    (
        "history with calls",
        {
            "input": [
                {"role": "user", "content": "Weather?"},
                {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "Sunny."},
            ]
        },
        lambda r: True,
    ),
    ("service_tier flex", {"service_tier": "flex"}, lambda r: True),
    ("prompt_cache_key, retention", {"prompt_cache_key": "k", "prompt_cache_retention": "24h"}, lambda r: True),
    ("prompt of a template", {"prompt": {"id": "pmpt_1"}}, "the prompt would be another"),
    ("conversation", {"conversation": "conv_1"}, "the conversation would be missing"),
    (
        "image",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": PIXEL, "detail": "auto"}]}]},
        "the model would not see it",
    ),
)


def _row(prefix: str, row: tuple[str, Fields, Check | str], run: Callable[[openai.OpenAI, str, Fields], Any]) -> Call:
    name, fields, expected = row
    changes = expected if isinstance(expected, str) else ""
    holds = (lambda result: True) if isinstance(expected, str) else expected
    return Call(f"{prefix}: {name}", lambda client, model: run(client, model, fields), holds, changes)


def chat(client: openai.OpenAI, model: str, fields: Fields) -> Any:
    limit = {} if {"max_tokens", "max_completion_tokens"} & fields.keys() else {"max_tokens": MOST}
    return client.chat.completions.create(**{"model": model, "messages": HI, **limit, **fields})


def text(client: openai.OpenAI, model: str, fields: Fields) -> Any:
    return client.completions.create(**{"model": model, "prompt": "Once", "max_tokens": MOST, **fields})


def response(client: openai.OpenAI, model: str, fields: Fields) -> Any:
    return client.responses.create(**{"model": model, "input": "Say hi.", "max_output_tokens": MOST, **fields})


def _streamed(fields: Fields) -> Callable[[openai.OpenAI, str], Any]:
    return lambda client, model: list(chat(client, model, {"stream": True, **fields}))


def _chat_stream(client: openai.OpenAI, model: str) -> Any:
    with client.chat.completions.stream(model=model, messages=HI, max_tokens=ENOUGH) as stream:  # type: ignore[arg-type]
        for _ in stream:
            pass
        return stream.get_final_completion()


def _response_stream(client: openai.OpenAI, model: str) -> Any:
    with client.responses.stream(model=model, input="Say hi.", max_output_tokens=ENOUGH) as stream:
        for _ in stream:
            pass
        return stream.get_final_response()


def _with_stored(work: Callable[[openai.OpenAI, str], Any], **fields: Any) -> Callable[[openai.OpenAI, str], Any]:
    """Store a response, then do something with its id."""
    return lambda client, model: work(client, response(client, model, {"store": True, **fields}).id)


def _follow(client: openai.OpenAI, model: str) -> Any:
    first = response(client, model, {"store": True})
    return response(client, model, {"input": "Again.", "previous_response_id": first.id})


def _resumed(client: openai.OpenAI, model: str) -> Any:
    events = list(response(client, model, {"background": True, "stream": True, "store": True}))
    return list(client.responses.retrieve(events[0].response.id, stream=True, starting_after=1))


def _file(client: openai.OpenAI, model: str = "") -> Any:
    body = {"model": model, "messages": HI, "max_tokens": 4}
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    return client.files.create(file=("a.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")


def _batch(client: openai.OpenAI, model: str) -> Any:
    return client.batches.create(
        input_file_id=_file(client, model).id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"job": "1"},
    )


def _raw(client: openai.OpenAI, model: str) -> Any:
    return client.chat.completions.with_raw_response.create(model=model, messages=HI, max_tokens=MOST)  # type: ignore[arg-type]


def _streaming_response(client: openai.OpenAI, model: str) -> Any:
    with client.chat.completions.with_streaming_response.create(
        model=model,
        messages=HI,  # type: ignore[arg-type]
        max_tokens=MOST,
        stream=True,
    ) as reply:
        return list(reply.iter_lines())


def _unknown_model(client: openai.OpenAI, model: str) -> Any:
    try:
        client.models.retrieve("no-such-model")
    except openai.NotFoundError as error:
        return error.body
    return None


OTHERS: Sequence[Call] = (
    Call("chat stream: plain", _streamed({}), lambda r: r[-1].choices[0].finish_reason is not None),
    Call(
        "chat stream: usage",
        _streamed({"stream_options": {"include_usage": True}}),
        lambda r: r[-1].usage.completion_tokens > 0,
    ),
    Call("chat stream: obfuscation", _streamed({"stream_options": {"include_obfuscation": True}}), bool),
    Call("chat stream: n, logprobs", _streamed({"n": 2, "logprobs": True, "top_logprobs": 2}), bool),
    Call(
        "chat stream: tools required",
        _streamed({"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}),
        lambda r: any(c.choices and c.choices[0].delta.tool_calls for c in r),
    ),
    Call("chat.completions.stream", _chat_stream, _text),
    Call(
        "chat.completions.parse",
        lambda client, model: client.chat.completions.parse(
            model=model,
            messages=HI,  # type: ignore[arg-type]
            response_format=Answer,
            max_tokens=40,
        ),
        lambda r: r.choices[0].message.parsed is not None,
    ),
    Call(
        "chat.completions.parse with a function of pydantic",
        lambda client, model: client.chat.completions.parse(
            model=model,
            messages=HI,  # type: ignore[arg-type]
            tools=[openai.pydantic_function_tool(Answer)],
            tool_choice="required",
            parallel_tool_calls=False,
            max_tokens=ENOUGH,
        ),
        lambda r: r.choices[0].message.tool_calls[0].function.parsed_arguments is not None,
    ),
    Call("chat with_raw_response", _raw, lambda r: bool(r.headers["x-request-id"]) and _text(r.parse())),
    Call("chat with_streaming_response", _streaming_response, lambda r: "data: [DONE]" in r),
    Call(
        "chat with extra headers, query and timeout",
        lambda client, model: client.with_options(timeout=60, max_retries=1).chat.completions.create(
            model=model,
            messages=HI,  # type: ignore[arg-type]
            max_tokens=MOST,
            extra_headers={"OpenAI-Organization": "o", "OpenAI-Project": "p", "X-Title": "t"},
            extra_query={"api-version": "2026-01-01"},
        ),
        _text,
    ),
    Call(
        "chat with an unknown field in extra_body",
        lambda client, model: chat(client, model, {"extra_body": {"chat_id": "1", "top_k": 4}}),
        _text,
    ),
    Call(
        "chat.completions.list", lambda client, model: client.chat.completions.list().data, changes="nothing is stored"
    ),
    Call(
        "completions stream",
        lambda client, model: list(text(client, model, {"stream": True, "stream_options": {"include_usage": True}})),
        lambda r: r[-1].usage is not None,
    ),
    Call(
        "responses stream",
        lambda client, model: list(response(client, model, {"stream": True})),
        lambda r: r[-1].type in {"response.completed", "response.incomplete"},
    ),
    Call("responses.stream", _response_stream, lambda r: r.output_text is not None),
    Call(
        "responses.parse",
        lambda client, model: client.responses.parse(
            model=model, input="Say hi.", text_format=Answer, max_output_tokens=40
        ),
        lambda r: r.output_parsed is not None,
    ),
    Call(
        "responses.input_tokens.count",
        lambda client, model: client.responses.input_tokens.count(model=model, input="Say hi."),
        lambda r: r.input_tokens > 0,
    ),
    Call("responses: store", _with_stored(lambda client, known: known), changes="it could not be asked for"),
    Call(
        "responses.retrieve",
        _with_stored(lambda client, known: client.responses.retrieve(known)),
        lambda r: r.output_text is not None,
        "it could not be asked for",
    ),
    Call(
        "responses.input_items.list",
        _with_stored(lambda client, known: client.responses.input_items.list(known)),
        lambda r: len(r.data) == 1,
        "it could not be asked for",
    ),
    Call(
        "responses.delete",
        _with_stored(lambda client, known: client.responses.delete(known)),
        changes="it could not be asked for",
    ),
    Call("responses: previous_response_id", _follow, changes="the conversation would be missing"),
    Call(
        "responses: background",
        lambda client, model: response(client, model, {"background": True, "store": True}),
        lambda r: r.status in {"queued", "in_progress", "completed", "incomplete"},
        "it could not be asked for",
    ),
    Call(
        "responses.cancel",
        _with_stored(lambda client, known: client.responses.cancel(known), background=True, max_output_tokens=200),
        lambda r: r.status in {"cancelled", "completed", "incomplete"},
        "it could not be asked for",
    ),
    Call("responses: background stream, resumed", _resumed, bool, "it could not be asked for"),
    Call("models.list", lambda client, model: [one.id for one in client.models.list()], bool),
    Call("models.retrieve", lambda client, model: client.models.retrieve(model).id, bool),
    Call("models.retrieve, unknown", _unknown_model, bool),
    Call("files.create", _file, lambda r: r.purpose == "batch"),
    Call("files.list", lambda client, model: client.files.list(limit=2, order="desc").data, bool),
    Call("files.retrieve", lambda client, model: client.files.retrieve(_file(client, model).id), bool),
    Call("files.content", lambda client, model: client.files.content(_file(client, model).id).read(), bool),
    Call("files.delete", lambda client, model: client.files.delete(_file(client, model).id).deleted, bool),
    Call("batches.create", _batch, lambda r: r.status in {"validating", "in_progress", "completed"}),
    Call("batches.retrieve", lambda client, model: client.batches.retrieve(_batch(client, model).id), bool),
    Call("batches.list", lambda client, model: client.batches.list(limit=1).data, bool),
    Call("batches.cancel", lambda client, model: client.batches.cancel(_batch(client, model).id).status, bool),
    Call("embeddings", lambda client, model: client.embeddings.create(model=model, input="Hi"), changes="no text"),
    Call("moderations", lambda client, model: client.moderations.create(model=model, input="Hi"), changes="no text"),
    Call("images.generate", lambda client, model: client.images.generate(model=model, prompt="Hi"), changes="no text"),
)

CALLS: Sequence[Call] = (
    *(_row("chat", row, chat) for row in CHAT),
    *(_row("completions", row, text) for row in TEXTS),
    *(_row("responses", row, response) for row in RESPONSES),
    *OTHERS,
)
