"""The shape of a dialect: an API of others, served as chats and completions.

A dialect is a folder of three files. `parse.py` has its bodies, and turns one into the body of a chat or a completion;
`render.py` turns the deltas of an answer into a reply or into events; both are pure. `routes.py` has the shape of its
errors and its routes, of which those that generate end in `answered`. No other code knows a dialect.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from fastapi import Request
from fastapi.responses import Response
from jiter import from_json

from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import ClientBody, Schema, Seed, Stop
from prolepsis.control.web.refusals import unknown_url
from prolepsis.control.web.routes import CLIENTS, Routes
from prolepsis.core.requests import SAMPLING_TABLE
from prolepsis.core.stats import RequestStats
from prolepsis.core.validation import Number
from prolepsis.server.answering.answer import Parts, answer
from prolepsis.server.answering.stream import Framing, Voice
from prolepsis.server.answering.usage import Json
from prolepsis.server.openai.completions import consumed
from prolepsis.server.openai.routes import streamed, whole_reply
from prolepsis.server.preparing import bodies
from prolepsis.server.preparing.prepare import prepare
from prolepsis.server.preparing.prepared import PreparedRequest, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.text.deltas import Delta


class ForeignRequest(ClientBody):
    model: str

    @property
    def predict_s(self) -> float | None:
        """As in `PreparedRequest`."""
        return None


class LlamaSampling(ClientBody):
    """Sampling parameters as llama.cpp and Ollama have them."""

    temperature: Number | None = None
    top_k: int | None = None
    top_p: Number | None = None
    min_p: Number | None = None
    repeat_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    seed: Seed | None = None
    stop: Stop | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """Fields of a chat or completion that mean the same, but for the seed."""
        return {row.name: getattr(self, row.llamacpp or row.name) for row in SAMPLING_TABLE} | {"stop": self.stop}


B = TypeVar("B", bound=ForeignRequest)


class Rendering(Voice, ABC):
    """The answer to one request as its dialect shows it."""

    @abstractmethod
    def take(self, delta: Delta) -> Sequence[Json]:
        """Return the events of a delta."""

    @abstractmethod
    def last(self, stats: RequestStats) -> Sequence[Json]:
        """Return the events after the last delta."""

    @abstractmethod
    def whole(self, stats: RequestStats) -> Json:
        """Return the reply, after the last delta."""


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[B]):
    """One way to ask for an answer."""

    parse: Callable[[B], bodies.ChatBody | bodies.CompletionBody]
    render: Callable[[B, PreparedRequest], Rendering]
    framing: Framing
    prefix: str = "chatcmpl-"  # of the answers' ids


async def answered(request: Request, body: B, models: Models, endpoint: Endpoint[B]) -> Response:
    services = models.of(body.model, caller_of(request))
    return await services.idempotency.once(request, body, partial(_answered, body, services, endpoint))


async def _answered(body: B, services: Services, endpoint: Endpoint[B], request: Request) -> Response:
    context = replace(context_of(request), clamps=True)
    turn = partial(services.intake.large_work.run, context.caller.tenant, context.num_bytes)
    parsed = await turn(partial(endpoint.parse, body))
    prepared = await prepare(parsed, context, services)
    answer_id = prepared.answer_id.replace("chatcmpl-", endpoint.prefix, 1)
    prepared = replace(prepared, answer_id=answer_id, predict_s=body.predict_s)
    parts, rendering = answer(request, prepared, services), endpoint.render(body, prepared)
    if prepared.stream:
        return streamed(_events(parts, rendering), prepared, services, endpoint.framing, rendering)
    return await whole_reply(request, prepared, services, _whole(parts, rendering))


async def _events(parts: Parts, rendering: Rendering) -> AsyncGenerator[Json, None]:
    async with aclosing(parts):
        async for part in parts:
            for event in rendering.take(part) if isinstance(part, Delta) else rendering.last(part):
                yield event


async def _whole(parts: Parts, rendering: Rendering) -> tuple[Json, RequestStats]:
    stats = await consumed(parts, rendering.take)
    return rendering.whole(stats), stats


def refuse_others(routes: Routes, path: str) -> None:
    """Answer what lies below a path and is not served, in the shape of the dialect's errors."""

    @routes.get(f"{path}/{{rest:path}}", roles=CLIENTS, summary="Not served", documented=False)
    @routes.post(f"{path}/{{rest:path}}", roles=CLIENTS, summary="Not served", documented=False)
    @routes.delete(f"{path}/{{rest:path}}", roles=CLIENTS, summary="Not served", documented=False)
    async def not_served(request: Request) -> Response:
        raise unknown_url(request.method, request.scope["path"])


def tool(name: str, description: str | None, schema: Schema | None, *, strict: bool | None = None) -> bodies.ToolBody:
    """Return a tool; other APIs have other rules for names."""
    function = bodies.FunctionBody.model_construct(name=name, description=description, parameters=schema, strict=strict)
    return bodies.ToolBody(type="function", function=function)


def call(call_id: str, name: str, arguments: Schema) -> bodies.ToolCallBody:
    written = json.dumps(arguments, ensure_ascii=False)
    function = bodies.CalledFunctionBody.model_construct(name=name, arguments=written)
    return bodies.ToolCallBody(id=call_id, function=function)


def arguments_of(written: str) -> Json:
    """Return the arguments of a call that the model made; those that were cut are closed where they were."""
    arguments: Json = from_json(written.encode() or b"{}", partial_mode="on")
    return arguments


def form_of(schema: Schema) -> bodies.ResponseFormat:
    named = bodies.JsonSchemaBody.model_construct(name="answer", schema_=schema)
    return bodies.ResponseFormat(type="json_schema", json_schema=named)
