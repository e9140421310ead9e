"""Answers of one engine over HTTP as clients put them together: in every mode, streamed and whole, chats, responses."""

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx2

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.engine.build import assemble
from prolepsis.engine.models.load import LoadedModel
from prolepsis.engine.text.model_tokenizer import ModelTokenizer
from prolepsis.engine.thread import ThreadEngineClient
from tests.server.application import build

Body = dict[str, Any]
Mode = Literal["off", "auto", "always"]
VARIANTS: tuple[tuple[Mode, bool], ...] = (
    *(("off", False), ("off", True), ("auto", False), ("auto", True)),
    *(("always", False), ("always", True)),
)
"""Mode, and whether the answer is streamed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client gets of one answer."""

    tokens: tuple[int, ...] = field(repr=False)
    content: str
    reasoning: str
    calls: tuple[tuple[str, str], ...]
    """Names and arguments."""
    finish: str | None


@dataclass(frozen=True, slots=True)
class Answers:
    """All answers to one request."""

    chats: list[Answer]
    """In the order of `VARIANTS`."""
    responses: list[Answer]
    """Whole and streamed, in mode auto; without tokens and reason."""

    @property
    def differ(self) -> bool:
        first = self.chats[0]
        same = Answer((), first.content, first.reasoning, first.calls, None)
        return any(one != first for one in self.chats) or any(one != same for one in self.responses)


async def answer_all(
    config: EngineConfig, loaded: LoadedModel, bodies: Sequence[Body], at_once: int
) -> list[Answers | str]:
    """Return the answers to bodies of chats, in their order, or the error; of each other one the client predicts it."""
    client, places = ThreadEngineClient(assemble(config, loaded)), asyncio.Semaphore(at_once)
    app = build(ServerConfig(served_model_names=("tiny",)), client, loaded.tokenizer, Metrics())

    async def one(http: httpx2.AsyncClient, number: int, body: Body) -> Answers | str:
        async with places:
            try:
                return await _answers(http, body, loaded.tokenizer, predicts=number % 2 == 1)
            except AssertionError as error:
                return str(error)

    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as http:
            return await asyncio.gather(*(one(http, number, body) for number, body in enumerate(bodies)))
    finally:
        await client.close()


async def _answers(http: httpx2.AsyncClient, body: Body, tokenizer: ModelTokenizer, *, predicts: bool) -> Answers:
    (mode, stream), *others = VARIANTS
    first = await _chat(http, body, mode, stream=stream)
    predicted = body
    if predicts and (text := tokenizer.decode(first.tokens, skip_special_tokens=False)):
        predicted = {**body, "prediction": {"type": "content", "content": text}}
    chats = [first, *[await _chat(http, predicted, mode, stream=stream) for mode, stream in others]]
    return Answers(chats, [await _response(http, body, stream=stream) for stream in (False, True)])


async def _asked(http: httpx2.AsyncClient, path: str, body: Body) -> httpx2.Response:
    reply = await http.post(path, json={**body, "model": "tiny"}, timeout=300)
    assert reply.status_code == 200, reply.text[:300]
    return reply


def _events(reply: httpx2.Response) -> list[Any]:
    lines = [line.partition("data: ")[2] for line in reply.text.split("\n\n") if "data: {" in line]
    events = [json.loads(line) for line in lines]
    assert all("error" not in event for event in events), lines[-1]
    return events


async def _chat(http: httpx2.AsyncClient, body: Body, mode: Mode, *, stream: bool) -> Answer:
    reply = await _asked(http, "/v1/chat/completions", {**body, "speculation": {"mode": mode}, "stream": stream})
    if not stream:
        choice = reply.json()["choices"][0]
        return _read([choice["message"]], choice["token_ids"], choice["finish_reason"])
    choices = [event["choices"][0] for event in _events(reply) if event["choices"]]
    tokens = [token for choice in choices for token in choice.get("token_ids", ())]
    return _read([choice["delta"] for choice in choices], tokens, choices[-1]["finish_reason"])


def _read(parts: Sequence[Mapping[str, Any]], tokens: Sequence[int], finish: str | None) -> Answer:
    calls: list[list[str]] = []
    for i, call in enumerate(call for part in parts for call in part.get("tool_calls") or ()):
        if call.get("index", i) == len(calls):
            calls.append([call["function"]["name"], ""])
        calls[-1][1] += call["function"]["arguments"]
    content, reasoning = ("".join(part.get(name) or "" for part in parts) for name in ("content", "reasoning_content"))
    return Answer(tuple(tokens), content, reasoning, tuple((name, arguments) for name, arguments in calls), finish)


async def _response(http: httpx2.AsyncClient, body: Body, *, stream: bool) -> Answer:
    reply = await _asked(http, "/v1/responses", {**_as_response(body), "stream": stream})
    if not stream:
        items = reply.json()["output"]
        return Answer((), _text(items, "message"), _text(items, "reasoning"), _calls(items), None)
    events = _events(reply)
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    content, reasoning = (
        "".join(event["delta"] for event in events if event["type"] == f"response.{kind}.delta")
        for kind in ("output_text", "reasoning_text")
    )
    assert (content, reasoning) == (_text(items, "message"), _text(items, "reasoning")), "deltas are not the items"
    return Answer((), content, reasoning, _calls(items), None)


def _as_response(body: Body) -> Body:
    """Return the request of a chat as one of responses."""
    own = ("messages", "max_tokens", "return_token_ids", "response_format", "tools", "tool_choice")
    asked: Body = {name: value for name, value in body.items() if name not in own}
    asked |= {"input": body["messages"], "max_output_tokens": body["max_tokens"]}
    if "tools" in body:
        asked["tools"] = [{"type": "function", **tool["function"]} for tool in body["tools"]]
    if "tool_choice" in body:
        choice = body["tool_choice"]
        asked["tool_choice"] = choice if isinstance(choice, str) else {"type": "function", **choice["function"]}
    if "response_format" in body:
        asked["text"] = {"format": {"type": "json_schema", **body["response_format"]["json_schema"]}}
    return asked


def _text(items: Iterable[Mapping[str, Any]], kind: str) -> str:
    return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])


def _calls(items: Iterable[Mapping[str, Any]]) -> tuple[tuple[str, str], ...]:
    return tuple((item["name"], item["arguments"]) for item in items if item["type"] == "function_call")
