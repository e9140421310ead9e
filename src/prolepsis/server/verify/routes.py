"""POST /v1/verify/...: answers whose clients draft, and the drafts.

An answer is that of the route behind `/v1/verify`, as a stream of other events. Drafts come in requests of their own
while it runs; the answer never waits for one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn, caller_of
from prolepsis.control.web.fields import Body, Count, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.client_draft import MAX_CLIENT_DRAFT_TOKENS, ClientDraft
from prolepsis.server.answering.answer import answer
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.known import VERIFY_ROUTES
from prolepsis.server.openai.routes import named, streamed
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from prolepsis.server.preparing.prepare import prepare_chat, prepare_completion
from prolepsis.server.preparing.prepared import SPEC_MODE_HEADER, PreparedRequest, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.verify.events import verify_events
from prolepsis.server.verify.refusal import Refusal, check_supported, refusal_of
from prolepsis.server.verify.streams import VerifyStream, VerifyStreams


class DraftBody(Body):
    """Draft of a client for an answer from one position on; it replaces its earlier draft."""

    position: Count
    """Output position of the first token, from 0."""
    token_ids: Annotated[list[Count], Field(min_length=1, max_length=MAX_CLIENT_DRAFT_TOKENS)]


class DraftReply(Reply):
    taken: bool
    reason: Refusal | None
    """Reason why it was not taken; null if it was."""


def verify_routes(models: Models) -> Sequence[Route]:
    routes, streams = Routes(), VerifyStreams()
    chat_path, completion_path = VERIFY_ROUTES
    generating = partial(
        routes.post, roles=CLIENTS, errors=(409, 502, 504), streams="text/event-stream", headers=SPEC_MODE_HEADER
    )

    def answered(request: Request, prepared: PreparedRequest, services: Services) -> Response:
        generated = prepared.requests[0]
        refusal = partial(refusal_of, generated, services)
        stream = VerifyStream(generated, caller_of(request), services.client, refusal)
        parts = answer(request, prepared, services, tells_start=True)
        events = verify_events(prepared, parts, stream, streams, services)
        return streamed(events, prepared, services, NAMED_SSE)

    @generating(chat_path, summary="Continue a conversation, and verify its client's drafts")
    async def chat(request: Request, body: Annotated[ChatBody, read_body(ChatBody)]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        return answered(request, await prepare_chat(check_supported(body), context_of(request), services), services)

    @generating(completion_path, summary="Continue a text, and verify its client's drafts")
    async def completion(request: Request, body: Annotated[CompletionBody, read_body(CompletionBody)]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        prepared = await prepare_completion(check_supported(body), context_of(request), services)
        return answered(request, prepared, services)

    @routes.post("/v1/verify/{stream_id}/drafts", roles=CLIENTS, summary="Send what is expected of an answer")
    async def drafts(stream_id: str, caller: SignedIn, body: Annotated[DraftBody, read_body(DraftBody)]) -> DraftReply:
        reason = streams.find(stream_id, caller).take(ClientDraft(body.position, tuple(body.token_ids)))
        return DraftReply(taken=reason is None, reason=reason)

    return routes.all
