"""POST /v1/decisions: which of several texts the model would go on with, by the log-probabilities of their tokens."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Self

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import Metadata, Priority, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.answering.usage import Json, usage
from prolepsis.server.known import DECISIONS_ROUTE
from prolepsis.server.openai.routes import whole_reply
from prolepsis.server.openai.scoring import prepare_scoring, scored
from prolepsis.server.openai.tokenization import TemplatedBody, templated
from prolepsis.server.preparing.prepared import PreparedRequest, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.text.shown_tokens import LOWEST_LOGPROB

MAX_CANDIDATES = 64


class DecisionsBody(TemplatedBody):
    """A text or a conversation, and the texts of which one is to follow."""

    model: str
    prompt: str | None = None
    candidates: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=MAX_CANDIDATES)]
    priority: Priority | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    metadata: Metadata | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either 'prompt' or 'messages'")
        return self


class CandidateScore(Reply):
    index: int
    text: str
    num_tokens: int
    logprob: float  # of all its tokens together, behind the prompt
    probability: float  # its share among the candidates


class DecisionReply(Reply):
    id: str
    object: str
    model: str
    choice: int  # index of the likeliest candidate; the first among equals
    candidates: list[CandidateScore]
    usage: Json


def decision_routes(models: Models) -> Sequence[Route]:
    routes = Routes()

    @routes.post(
        DECISIONS_ROUTE, roles=CLIENTS, summary="Choose among given texts", reply=DecisionReply, errors=(409, 502, 504)
    )
    async def decisions(request: Request, body: Annotated[DecisionsBody, read_body(DecisionsBody)]) -> Response:
        services = models.of(body.model, caller_of(request))
        return await services.idempotency.once(request, body, partial(_decided, body, services))

    return routes.all


async def _decided(body: DecisionsBody, services: Services, request: Request) -> Response:
    context = context_of(request)
    turn = partial(services.intake.large_work.run, context.caller.tenant, context.num_bytes)
    begin, texts = await turn(lambda: _tokens(body, services.tokenizer))
    prepared = await prepare_scoring(begin, texts, body, context, services)
    return await whole_reply(request, prepared, services, _scored(request, body, prepared, services))


def _tokens(body: DecisionsBody, tokenizer: Tokenizer) -> tuple[list[int], list[list[int]]]:
    begin = templated(body, tokenizer) if body.prompt is None else tokenizer.encode(body.prompt)
    if not begin:
        raise InvalidParameter("prompt has no tokens; allowed: 1 or more", param="prompt")
    return begin, [tokenizer.encode(given(text), add_special_tokens=False) for text in body.candidates]


async def _scored(
    request: Request, body: DecisionsBody, prepared: PreparedRequest, services: Services
) -> tuple[Json, RequestStats]:
    logprobs, stats = await scored(request, prepared, services, "candidates")
    scores = [max(LOWEST_LOGPROB, math.fsum(token.logprob for token in tokens)) for tokens in logprobs]
    rows = zip(body.candidates, map(len, logprobs), scores, shares(scores), strict=True)
    candidates = [
        {"index": i, "text": text, "num_tokens": number, "logprob": logprob, "probability": share}
        for i, (text, number, logprob, share) in enumerate(rows)
    ]
    choice = scores.index(max(scores))
    shown: Json = {"id": prepared.answer_id.replace("cmpl-", "decision-", 1), "object": "decision", "model": body.model}
    return {**shown, "choice": choice, "candidates": candidates, "usage": usage(stats)}, stats


def shares(logprobs: Sequence[float]) -> Sequence[float]:
    """Return the probabilities that add up to 1 and have the ratios of these."""
    most = max(logprobs)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / math.fsum(weights) for weight in weights]
