"""POST /v1/verify/...: answers whose clients draft, and the drafts.

An answer is that of the route behind `/v1/verify`, as a stream of other events. Drafts come in requests of their own
while it runs; the answer never waits for one.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import Request
from fastapi.responses import Response
from msgspec import UNSET, to_builtins
from pydantic import Field

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import SignedIn, caller_of
from prolepsis.control.web.fields import Body, Count, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.client_draft import MAX_CLIENT_DRAFT_TOKENS, ClientDraft
from prolepsis.core.config import CLIENT
from prolepsis.core.stats import ProposerCounts, RequestStats
from prolepsis.remote.verify_events import Corrected, Done, DraftCounts, Drafting, Emitted, Started
from prolepsis.server.answering.answer import Parts, answer
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.answering.usage import Json, metrics, usage
from prolepsis.server.known import VERIFY_ROUTES
from prolepsis.server.openai.routes import named, streamed
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from prolepsis.server.preparing.prepare import prepare
from prolepsis.server.preparing.prepared import SPEC_HEADERS, PreparedRequest, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.text.deltas import Delta
from prolepsis.server.verify.streams import Refusal, VerifyStream, VerifyStreams, check_supported, refusal_of


async def verify_events(
    prepared: PreparedRequest, parts: Parts, stream: VerifyStream, streams: VerifyStreams, services: Services
) -> AsyncGenerator[Json, None]:
    """Yield the events of one answer. The first comes before the engine has begun, so that its client can draft.

    `parts` begin with an empty one when the request leaves the queue: what refuses it comes before the first event.
    """
    last: Delta | None = None
    with streams.opened(stream):
        async with aclosing(parts):
            token_ids, decode = stream.request.prompt_token_ids, services.tokenizer.decode
            texts = await services.intake.large_work.off_loop(
                prepared.context.caller.tenant, lambda: tuple(decode([token]) for token in token_ids)
            )
            await anext(parts)
            yield to_builtins(_started(prepared, stream, services, texts))
            async for part in parts:
                if not isinstance(part, Delta):
                    yield to_builtins(_done(prepared, stream, last, part))
                    continue
                num_accepted, is_corrected = stream.send(part.token_ids)
                kind, texts_of = Corrected if is_corrected else Emitted, tuple(token.text for token in part.tokens)
                yield to_builtins(kind(part.position, tuple(part.token_ids), texts_of, part.text, num_accepted))
                if last is None:
                    stream.offer()  # again: a draft may have come before the request ran
                last = part


def _started(prepared: PreparedRequest, stream: VerifyStream, services: Services, texts: tuple[str, ...]) -> Started:
    """Return what a client drafts from: the prompt's tokens and their texts."""
    refusal = stream.refusal()
    return Started(
        id=stream.id,
        model=prepared.body.model,
        system_fingerprint=services.client.info.fingerprint,
        seed=prepared.seed,
        prompt_token_ids=stream.request.prompt_token_ids,
        prompt_token_strs=texts,
        drafts=Drafting(refusal is None, refusal, MAX_CLIENT_DRAFT_TOKENS),
    )


def _done(prepared: PreparedRequest, stream: VerifyStream, last: Delta | None, stats: RequestStats) -> Done:
    counts = stats.proposers.get(CLIENT, ProposerCounts())
    return Done(
        finish_reason=last.finish_reason if last else None,
        stop_reason=last.stop_reason if last else None,
        usage=usage(stats, has_prediction=prepared.has_prediction),
        seed=prepared.seed,
        drafts=DraftCounts(
            stream.num_drafts, stream.num_late, counts.num_drafts, counts.num_draft_tokens, counts.num_accepted
        ),
        effective=asdict(stats.mode),
        metrics=metrics(stats, prepared.speculation) if prepared.speculation.requested.metrics else UNSET,
    )


class DraftBody(Body):
    """Draft of a client for an answer from one position on; it replaces its earlier draft."""

    position: Count  # output position of the first token, from 0
    token_ids: Annotated[list[Count], Field(min_length=1, max_length=MAX_CLIENT_DRAFT_TOKENS)]


class DraftReply(Reply):
    taken: bool
    reason: Refusal | None


def verify_routes(models: Models) -> Sequence[Route]:
    routes, streams = Routes(), VerifyStreams()
    chat_path, completion_path = VERIFY_ROUTES
    generating = partial(
        routes.post, roles=CLIENTS, errors=(409, 502, 504), streams="text/event-stream", headers=SPEC_HEADERS
    )

    async def answered(request: Request, given: ChatBody | CompletionBody) -> Response:
        body = check_supported(named(given, models, request))
        services = models.of(body.model, caller_of(request))
        prepared = await prepare(body, context_of(request), services)
        generated = prepared.requests[0]
        refusal = partial(refusal_of, generated, services)
        stream = VerifyStream(generated, caller_of(request), services.client, refusal)
        parts = answer(request, prepared, services, tells_start=True)
        events = verify_events(prepared, parts, stream, streams, services)
        return streamed(events, prepared, services, NAMED_SSE)

    @generating(chat_path, summary="Continue a conversation, and verify its client's drafts")
    async def chat(request: Request, body: Annotated[ChatBody, read_body(ChatBody)]) -> Response:
        return await answered(request, body)

    @generating(completion_path, summary="Continue a text, and verify its client's drafts")
    async def completion(request: Request, body: Annotated[CompletionBody, read_body(CompletionBody)]) -> Response:
        return await answered(request, body)

    @routes.post("/v1/verify/{stream_id}/drafts", roles=CLIENTS, summary="Send what is expected of an answer")
    async def drafts(stream_id: str, caller: SignedIn, body: Annotated[DraftBody, read_body(DraftBody)]) -> DraftReply:
        reason = streams.find(stream_id, caller).take(ClientDraft(body.position, tuple(body.token_ids)))
        return DraftReply(taken=reason is None, reason=reason)

    return routes.all
