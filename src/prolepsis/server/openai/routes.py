"""POST /v1/chat/completions, /v1/completions and /v1/responses."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, TypeVar

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from msgspec.json import encode
from starlette.requests import ClientDisconnect

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import Body
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.stats import RequestStats
from prolepsis.server.admission.controller import become_economy
from prolepsis.server.answering.answer import answer
from prolepsis.server.answering.idempotency import KEY_HEADER, KEY_SCHEMA
from prolepsis.server.answering.stored_responses import PAGES
from prolepsis.server.answering.stream import (
    NAMED_SSE,
    SILENT,
    SSE,
    AnswerStream,
    Framing,
    Voice,
    never,
    until_disconnect,
)
from prolepsis.server.answering.usage import Json
from prolepsis.server.known import FILL_ROUTE
from prolepsis.server.openai.completions import CompletionChunks, whole_completion
from prolepsis.server.openai.formats import ChatFormat, CompletionFormat, MakeFormat
from prolepsis.server.openai.replies import ChatCompletion, Completion, InputTokens, ResponseReply
from prolepsis.server.openai.responses import (
    ResponseShape,
    num_input_tokens,
    prepare_response,
    response_events,
    whole_response,
)
from prolepsis.server.openai.responses_bodies import ResponsesBody, shown_items
from prolepsis.server.openai.tokenization import tokenization_routes
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody, FillBody, SharedBody
from prolepsis.server.preparing.prepare import prepare, prepare_completion
from prolepsis.server.preparing.prepared import SPEC_HEADERS, PreparedRequest, context_of
from prolepsis.server.preparing.speculation import decided_by, mode_at_start
from prolepsis.server.services import Models, Services
from prolepsis.server.writers import DEVICE_MS

CLIENT_CLOSED_REQUEST = 499
"""For logs and counters only: the client is gone and reads no status."""
SEED = "x-seed"
EXACTNESS = "x-exactness"
"""Header of every answer: normal where drafts and other requests may turn a near-tie, else strict."""
QUALITY = "x-quality"
"""Header of a whole answer; a stream has it in its `metrics`."""
HEADERS = {**SPEC_HEADERS, KEY_HEADER: KEY_SCHEMA}


B = TypeVar("B", bound=SharedBody)
Serve = Callable[[B, Request, Services], Awaitable[Response]]


def named(body: B, models: Models, request: Request) -> B:
    return body if body.model else body.model_copy(update={"model": models.first(caller_of(request))})


def openai_routes(models: Models) -> Sequence[Route]:
    routes = Routes()
    generating = partial(
        routes.post, roles=CLIENTS, errors=(409, 502, 504), streams="text/event-stream", headers=HEADERS
    )

    async def once(request: Request, body: B, serve: Serve[B]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        if body.service_tier == "flex":
            become_economy(request)
        return await services.idempotency.once(request, body, lambda request: serve(body, request, services))

    @generating("/v1/chat/completions", summary="Continue a conversation", reply=ChatCompletion)
    async def chat_completions(request: Request, body: Annotated[ChatBody, read_body(ChatBody)]) -> Response:
        return await once(request, body, partial(_generated, ChatFormat))

    @generating("/v1/completions", summary="Continue texts", reply=Completion)
    async def completions(request: Request, body: Annotated[CompletionBody, read_body(CompletionBody)]) -> Response:
        return await once(request, body, partial(_generated, CompletionFormat))

    @generating(FILL_ROUTE, summary="Fill a gap in a text, in Mistral's shape", reply=ChatCompletion)
    async def fill(request: Request, body: Annotated[FillBody, read_body(FillBody)]) -> Response:
        return await once(request, body, _fill)

    @generating("/v1/responses", summary="Answer, and store the answer if allowed", reply=ResponseReply)
    async def responses(request: Request, body: Annotated[ResponsesBody, read_body(ResponsesBody)]) -> Response:
        return await once(request, body, _response)

    @routes.post("/v1/responses/input_tokens", roles=CLIENTS, summary="Count tokens of an input", reply=InputTokens)
    async def input_tokens(request: Request, body: Annotated[ResponsesBody, read_body(ResponsesBody)]) -> InputTokens:
        services, tenant = models.of(body.model, caller_of(request)), caller_of(request).tenant
        services.admission.admit_small(request)
        earlier = await services.responses.conversation(tenant, body.previous_response_id)
        count = partial(num_input_tokens, body, earlier, services)
        return InputTokens(input_tokens=await services.intake.large_work.off_loop(tenant, count))

    return [*routes.all, *tokenization_routes(models)]


async def _generated(
    make_form: MakeFormat, body: ChatBody | CompletionBody, request: Request, services: Services
) -> Response:
    return await _completion(request, await prepare(body, context_of(request), services), services, make_form)


async def _fill(body: FillBody, request: Request, services: Services) -> Response:
    context = replace(context_of(request), clamps=True)
    prepared = await prepare_completion(body.completion(), context, services)
    return await _completion(request, prepared, services, ChatFormat)


async def _response(body: ResponsesBody, request: Request, services: Services) -> Response:
    responses, context = services.responses, context_of(request)
    is_stored, tenant = responses.stores(store=body.store, background=bool(body.background)), context.caller.tenant
    earlier = await responses.conversation(tenant, body.previous_response_id)
    prepared = await prepare_response(body, earlier, context, services, stored=is_stored)
    if body.background:
        shape = ResponseShape(body, prepared, services)
        parts = answer(Request(request.scope, never), prepared, services, tells_start=True)
        document = shape.shown("queued")
        events = response_events(parts, shape)
        given = partial(shown_items, body.input)
        await services.responses.begin(given, request, document, events, shape.failed, keeps_events=prepared.stream)
        if not prepared.stream:
            return JSONResponse(document, headers=_headers(prepared, services))
        pages = services.responses.follow(prepared.context.caller.tenant, prepared.answer_id, -1)
        return streamed(pages, prepared, services, PAGES)
    keep = partial(responses.keep, partial(shown_items, body.input), request) if is_stored else None
    parts, shape = answer(request, prepared, services), ResponseShape(body, prepared, services, keep=keep)
    if prepared.stream:
        return streamed(response_events(parts, shape), prepared, services, NAMED_SSE, shape)
    return await whole_reply(request, prepared, services, whole_response(parts, shape))


GENERATING: Mapping[str, tuple[type[Body], Serve[Any]]] = {
    "/v1/chat/completions": (ChatBody, partial(_generated, ChatFormat)),
    "/v1/completions": (CompletionBody, partial(_generated, CompletionFormat)),
    "/v1/responses": (ResponsesBody, _response),
}
"""The body of each route that generates, and what answers it; the lines of batches are answered by the same."""


async def _completion(
    request: Request, prepared: PreparedRequest, services: Services, make_form: MakeFormat
) -> Response:
    parts, form = answer(request, prepared, services), make_form(prepared)
    if prepared.stream:
        chunks = CompletionChunks(prepared, services, form)
        return streamed(chunks.of(parts), prepared, services, SSE, chunks)
    return await whole_reply(request, prepared, services, whole_completion(parts, prepared, services, form))


def streamed(
    events: AsyncGenerator[Json, None],
    prepared: PreparedRequest,
    services: Services,
    framing: Framing,
    voice: Voice = SILENT,
) -> Response:
    admission, request_id = services.admission, prepared.requests[0].request_id
    return AnswerStream(
        events,
        framing,
        headers=_headers(prepared, services),
        ping_s=services.config.stream_ping_s,
        voice=voice,
        progress=lambda: admission.reading.get(request_id),
    )


async def whole_reply(
    request: Request,
    prepared: PreparedRequest,
    services: Services,
    work: Coroutine[object, object, tuple[Json, RequestStats]],
) -> Response:
    """Return the reply that `work` makes, with what is known of the answer in its headers."""
    try:
        reply, stats = await until_disconnect(request.receive, work)
    except ClientDisconnect:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    mode = stats.mode
    effective = f"mode={mode.mode};reason={mode.reason};plan={mode.plan_version}{decided_by(prepared.speculation)}"
    size, tenant = prepared.reply_bytes(stats.num_output_tokens), prepared.context.caller.tenant
    content = await services.intake.large_work.run(tenant, size, partial(encode, reply))
    headers = _headers(prepared, services, effective)
    headers |= {DEVICE_MS: f"{1e3 * stats.device.total:.3f}", QUALITY: stats.quality}
    return Response(content, headers=headers, media_type="application/json")


def _headers(prepared: PreparedRequest, services: Services, effective: str = "") -> dict[str, str]:
    """Return the headers of an answer; those of a stream say what is known before the first step."""
    return {
        "x-spec-effective": effective or mode_at_start(prepared.speculation),
        SEED: str(prepared.seed),
        EXACTNESS: services.client.info.exactness,
    }
