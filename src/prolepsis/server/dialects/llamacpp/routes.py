"""llama.cpp's own API: completions, gaps in files, and what its clients ask about the server."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, TypeVar

from fastapi import Request
from fastapi.responses import Response

from prolepsis import __version__
from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn, caller_of
from prolepsis.control.web.fields import JsonObject, Reply
from prolepsis.control.web.routes import ANY_ROLE, CLIENTS, Route, Routes
from prolepsis.core.requests import DEFAULTED, shaping
from prolepsis.server.answering.stream import UNENDED_SSE
from prolepsis.server.dialects.dialect import Endpoint, answered
from prolepsis.server.dialects.llamacpp.parse import (
    LlamaCppBody,
    LlamaCppCompletionBody,
    LlamaCppInfillBody,
    LlamaCppTemplateBody,
    parse_completion,
    parse_infill,
)
from prolepsis.server.dialects.llamacpp.render import LlamaCppRendering
from prolepsis.server.known import LLAMACPP_ROUTES
from prolepsis.server.openai.routes import HEADERS
from prolepsis.server.openai.tokenization import templated
from prolepsis.server.preparing.bodies import CompletionBody
from prolepsis.server.services import Models, Services


class LlamaCppReply(Reply):
    """The last event of a stream is the same, without text and tokens; `response_fields` are other fields."""

    index: int
    content: str
    tokens: list[int]
    stop: bool
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: JsonObject
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: JsonObject
    completion_probabilities: list[JsonObject] | None = None


class Templated(Reply):
    prompt: str


B = TypeVar("B", bound=LlamaCppBody)


def llamacpp_routes(models: Models) -> Sequence[Route]:
    routes = Routes()
    completion_path, plural_path, infill_path = LLAMACPP_ROUTES
    generating = partial(
        routes.post,
        roles=CLIENTS,
        errors=(409, 502, 504),
        streams="text/event-stream",
        headers=HEADERS,
        reply=LlamaCppReply | JsonObject,
    )

    async def generated(request: Request, body: B, parse: Callable[[B, Services], CompletionBody]) -> Response:
        caller = caller_of(request)
        body = body.model_copy(update={"model": body.model or models.first(caller)})
        services = models.of(body.model, caller)
        render = partial(LlamaCppRendering, tokenizer=services.tokenizer)
        endpoint = Endpoint(lambda given: parse(given, services), render, UNENDED_SSE)
        return await answered(request, body, models, endpoint)

    @generating(completion_path, summary="Continue a text, in llama.cpp's shape")
    @generating(plural_path, summary="The same")
    async def completion(
        request: Request, body: Annotated[LlamaCppCompletionBody, read_body(LlamaCppCompletionBody)]
    ) -> Response:
        return await generated(request, body, lambda given, services: parse_completion(given, services.tokenizer))

    @generating(infill_path, summary="Fill a gap in a file, in llama.cpp's shape")
    async def infill(request: Request, body: Annotated[LlamaCppInfillBody, read_body(LlamaCppInfillBody)]) -> Response:
        def parse(given: LlamaCppInfillBody, services: Services) -> CompletionBody:
            return parse_infill(given, services.tokenizer, services.client.info.max_model_len)

        return await generated(request, body, parse)

    @routes.get("/props", roles=ANY_ROLE, summary="The model, in llama.cpp's shape")
    async def props(caller: SignedIn) -> JsonObject:
        services = models.of(None, caller)
        info, tokenizer = services.client.info, services.tokenizer
        defaults, texts = info.default_sampling, tokenizer.special_tokens
        params = {"n_predict": -1, **shaping(defaults, as_llamacpp=True, only=DEFAULTED)}
        return {
            "default_generation_settings": {"n_ctx": info.max_model_len, "params": params},
            "total_slots": services.client.health().max_running,
            "model_alias": services.model_names[0],
            "model_path": info.model,
            "chat_template": tokenizer.chat_template or "",
            "bos_token": texts.get("bos_token", ""),
            "eos_token": texts.get("eos_token", ""),
            "modalities": {"vision": False, "audio": False},
            "build_info": f"prolepsis-{__version__}",
        }

    @routes.post("/apply-template", roles=CLIENTS, summary="Convert messages to a prompt", reply=Templated)
    async def apply_template(
        request: Request, body: Annotated[LlamaCppTemplateBody, read_body(LlamaCppTemplateBody)]
    ) -> Templated:
        services, tenant = models.of(body.model, caller_of(request)), caller_of(request).tenant
        services.admission.admit_small(request)
        tokenizer = services.tokenizer
        return await services.intake.large_work.off_loop(
            tenant, lambda: Templated(prompt=tokenizer.decode(templated(body, tokenizer), skip_special_tokens=False))
        )

    return routes.all
