"""137 calls of openai-python: what a text server can meet, with default and edge values.

`calls.jsonl` has those that say all in their body; here are the others, and what results must hold.
"""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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


def _text(result: Any) -> bool:
    return result.choices[0].message.content is not None


def _has_logprobs(result: Any) -> bool:
    return len(result.choices[0].logprobs.content) > 0


def _calls(result: Any) -> bool:
    return bool(result.choices[0].message.tool_calls[0].function.name == "get_weather")


CHECKS: Mapping[str, Check] = {
    "chat: max_completion_tokens": lambda r: r.usage.completion_tokens <= 4,
    "chat: n 3": lambda r: len(r.choices) == 3,
    "chat: stop text": lambda r: "hi" not in r.choices[0].message.content,
    "chat: logprobs": _has_logprobs,
    "chat: top_logprobs 0": _has_logprobs,
    "chat: top_logprobs 20": lambda r: len(r.choices[0].logprobs.content[0].top_logprobs) == 20,
    "chat: response_format json_object": lambda r: r.choices[0].message.content.lstrip().startswith("{"),
    "chat: response_format json_schema": lambda r: "name" in json.loads(r.choices[0].message.content),
    "chat: tools required": _calls,
    "chat: tools named": _calls,
    "chat: tools allowed": _calls,
    "completions: two prompts": lambda r: len(r.choices) == 2,
    "completions: lists of token ids": lambda r: len(r.choices) == 2,
    "completions: n 2": lambda r: len(r.choices) == 2,
    "completions: best_of equal to n": lambda r: len(r.choices) == 2,
    "completions: token ids": lambda r: r.usage.prompt_tokens == 3,
    "completions: echo": lambda r: r.choices[0].text.startswith("Once"),
    "completions: echo, logprobs, max_tokens 0": lambda r: r.choices[0].logprobs.token_logprobs[0] is None,
    "completions: max_tokens 0": lambda r: r.choices[0].text == "",
    "completions: logprobs 5": lambda r: len(r.choices[0].logprobs.top_logprobs[0]) >= 5,
    "responses: metadata, user, safety_identifier": lambda r: r.metadata == {"a": "b"},
    "responses: include logprobs": lambda r: len(r.output[-1].content[0].logprobs) > 0,
    "responses: text format json_schema": lambda r: "name" in json.loads(r.output_text),
    "responses: text format json_object": lambda r: r.output_text.lstrip().startswith("{"),
    "responses: tools required": lambda r: r.output[-1].name == "get_weather",
}
"""What a result must hold beyond an answer, by call."""


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

MAKERS: Mapping[str, tuple[Callable[[openai.OpenAI, str, Fields], Any], Check]] = {
    "chat": (chat, lambda r: r.choices[0].message.content is not None or r.choices[0].message.tool_calls),
    "completions": (text, lambda r: r.choices[0].text is not None),
    "responses": (response, lambda r: r.status in {"completed", "incomplete"}),
}
"""By the beginning of a call's name: what makes it, and what its result holds in any case."""


def _listed() -> Iterator[Call]:
    """Yield the calls of `calls.jsonl`: what each adds to the plainest one, and how the answer would change without."""
    for line in Path(__file__).with_suffix(".jsonl").read_text().splitlines():
        one = json.loads(line)
        make, holds = MAKERS[one["call"].partition(":")[0]]
        run = partial(_made, make, one["fields"])
        changes = one.get("changes", "")
        yield Call(one["call"], run, (lambda r: True) if changes else CHECKS.get(one["call"], holds), changes)


def _made(make: Callable[[openai.OpenAI, str, Fields], Any], fields: Fields, client: openai.OpenAI, model: str) -> Any:
    return make(client, model, fields)


CALLS: Sequence[Call] = (*_listed(), *OTHERS)
