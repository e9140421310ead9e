"""Ollama's API: answers, and what its clients ask about models."""

from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Annotated

from fastapi import Request
from fastapi.responses import JSONResponse, Response

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn, caller_of
from prolepsis.control.web.errors import ErrorShape
from prolepsis.control.web.fields import JsonObject, Reply
from prolepsis.control.web.routes import ANY_ROLE, CLIENTS, Route, Routes
from prolepsis.server.answering.stream import NDJSON
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.dialect import Endpoint, answered, refuse_others
from prolepsis.server.dialects.ollama.parse import (
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaModelBody,
    parse_chat,
    parse_generate,
)
from prolepsis.server.dialects.ollama.render import OllamaRendering, loaded, shown_time
from prolepsis.server.known import OLLAMA_ROUTES
from prolepsis.server.openai.routes import HEADERS
from prolepsis.server.services import Models, Services

VERSION = "0.34.0"
"""The version of Ollama whose API this is: clients compare it with the one that they need."""
ERRORS = ErrorShape(
    "OllamaError",
    {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
    lambda refused: {"error": str(refused)},
)
_NEVER = "9999-12-31T23:59:59Z"


class OllamaReply(Reply):
    """The last line of a stream has the counts and times (ns) too."""

    model: str
    created_at: str
    message: JsonObject | None = None
    response: str | None = None
    thinking: str | None = None
    logprobs: list[JsonObject] | None = None
    done: bool
    done_reason: str
    total_duration: int | None = None
    load_duration: int | None = None
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None


class OllamaStatus(Reply):
    status: str


def _in_message(shown: Json) -> Json:
    return {"message": {"role": "assistant", **shown}}


def _in_response(shown: Json) -> Json:
    return {"response": shown.pop("content"), **shown}


CHAT = Endpoint(parse_chat, partial(OllamaRendering, place=_in_message), NDJSON)
GENERATE = Endpoint(parse_generate, partial(OllamaRendering, place=_in_response), NDJSON)


def ollama_routes(models: Models) -> Sequence[Route]:
    routes = Routes(ERRORS)
    chat_path, generate_path = OLLAMA_ROUTES
    generating = partial(
        routes.post, roles=CLIENTS, errors=(409, 502, 504), streams="application/x-ndjson", headers=HEADERS
    )

    @generating(chat_path, summary="Continue a conversation, in Ollama's shape", reply=OllamaReply)
    async def chat(request: Request, body: Annotated[OllamaChatBody, read_body(OllamaChatBody)]) -> Response:
        if body.messages:
            return await answered(request, body, models, CHAT)
        models.of(body.model, caller_of(request))
        return JSONResponse(loaded(body, {"message": {"role": "assistant", "content": ""}}))

    @generating(generate_path, summary="Answer or continue a text, in Ollama's shape", reply=OllamaReply)
    async def generate(
        request: Request, body: Annotated[OllamaGenerateBody, read_body(OllamaGenerateBody)]
    ) -> Response:
        if body.prompt:
            return await answered(request, body, models, GENERATE)
        models.of(body.model, caller_of(request))
        return JSONResponse(loaded(body, {"response": ""}))

    @routes.get("/api/tags", roles=ANY_ROLE, summary="Served models, in Ollama's shape")
    @routes.get("/api/ps", roles=ANY_ROLE, summary="Models in memory, in Ollama's shape")
    async def listed(caller: SignedIn) -> JsonObject:
        listing = list[JsonObject]()
        for name, services in models.allowed(caller).items():
            info = services.client.info
            listing.append(
                {
                    "name": name,
                    "model": name,
                    "size": info.files.num_bytes,
                    "size_vram": 0,
                    "digest": info.files.digest or sha256(info.fingerprint.encode()).hexdigest(),
                    "context_length": info.max_model_len,
                    "expires_at": _NEVER,
                    **_details(services),
                }
            )
        return {"models": listing}

    @routes.post("/api/show", roles=ANY_ROLE, summary="One model, in Ollama's shape")
    async def show(body: Annotated[OllamaModelBody, read_body(OllamaModelBody)], caller: SignedIn) -> JsonObject:
        services = models.of(body.model, caller)
        info, tokenizer = services.client.info, services.tokenizer
        known = {
            "tools": tokenizer.formats.tools is not None,
            "insert": tokenizer.fill_marks is not None,
            "thinking": tokenizer.formats.reasoning is not None,
        }
        architecture = info.files.architecture
        served = {"general.architecture": architecture, f"{architecture}.context_length": info.max_model_len}
        return {
            "modelfile": f"FROM {info.model}\n",
            "parameters": "",
            "template": tokenizer.chat_template or "",
            "model_info": {**info.files.facts, **served},
            "capabilities": ["completion", *(name for name, is_known in known.items() if is_known)],
            **_details(services),
        }

    @routes.post(
        "/api/pull",
        roles=CLIENTS,
        summary="Fetch a model: one that is served is there",
        reply=OllamaStatus,
        streams="application/x-ndjson",
    )
    async def pull(request: Request, body: Annotated[OllamaModelBody, read_body(OllamaModelBody)]) -> Response:
        models.of(body.model, caller_of(request))
        line = '{"status": "success"}\n'
        return Response(line, media_type="application/json" if body.stream is False else "application/x-ndjson")

    @routes.get("/api/version", roles=ANY_ROLE, summary="Version of Ollama's API")
    async def version() -> JsonObject:
        return {"version": VERSION}

    refuse_others(routes, "/api")
    return routes.all


def _details(services: Services) -> JsonObject:
    files = services.client.info.files
    details = {
        "parent_model": "",
        "format": files.format,
        "family": files.architecture,
        "families": [files.architecture],
        "parameter_size": files.parameter_size,
        "quantization_level": files.quantization,
    }
    return {"modified_at": shown_time(files.modified or services.started), "details": details}
