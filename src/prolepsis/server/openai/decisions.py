"""POST /v1/decisions and /v1/candidates: which of several texts, given ones or those of a writer, the model would go on
with, by the log-probabilities of their tokens."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import Metadata, Priority, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.given_text import given
from prolepsis.core.stats import RequestStats
from prolepsis.core.validation import Number
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.answering.answer import answer
from prolepsis.server.answering.usage import Json, usage
from prolepsis.server.known import CANDIDATES_ROUTE, DECISIONS_ROUTE
from prolepsis.server.openai.completions import consumed
from prolepsis.server.openai.routes import EXACTNESS, named, whole_reply
from prolepsis.server.openai.tokenization import TemplatedBody, templated
from prolepsis.server.openai.written import written
from prolepsis.server.preparing.bodies import ChatBody, CompletionBody
from prolepsis.server.preparing.prepare import prepare_chat, prepare_completion
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.text.deltas import Delta
from prolepsis.server.text.shown_tokens import LOWEST_LOGPROB

MAX_CANDIDATES = 64
_MAX_WRITTEN = 16
TextLogprobs = list[Sequence[TokenLogprobs]]


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


class CandidatesBody(ChatBody):
    """A conversation, and how many answers are wanted of how many."""

    n: Annotated[int, Field(ge=1, le=_MAX_WRITTEN)] = 4
    k: Annotated[int, Field(ge=1, le=_MAX_WRITTEN)] = 1
    writer: str | None = None  # by name; None: the first one
    at_least: Annotated[Number, Field(ge=0, le=1)] = 0.0  # the least score of a choice

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.k > self.n:
            raise ValueError(f"'k' is {self.k}; allowed: 1 to n ({self.n})")
        if self.stream or self.tools or self.logprobs or self.prompt_logprobs is not None or self.echo:
            raise ValueError("has 'stream', 'tools', 'logprobs', 'prompt_logprobs' or 'echo'; allowed: none of them")
        return self


class WrittenScore(CandidateScore):
    score: float  # geometric mean of the probabilities that the target gives its tokens


class CandidatesReply(DecisionReply):
    writer: str
    verified: float  # share of the texts that the target scored
    num_dropped: dict[str, int]  # texts without a score, by why
    candidates: list[WrittenScore]  # type: ignore[assignment]  # the best ones, the best first; they are only read
    choice: int | None  # type: ignore[assignment]  # index of the best one, if it is good enough
    why: str | None  # why there is no choice
    metrics: Json


def decision_routes(models: Models) -> Sequence[Route]:
    routes = Routes()

    @routes.post(
        DECISIONS_ROUTE, roles=CLIENTS, summary="Choose among given texts", reply=DecisionReply, errors=(409, 502, 504)
    )
    async def decisions(request: Request, body: Annotated[DecisionsBody, read_body(DecisionsBody)]) -> Response:
        services = models.of(body.model, caller_of(request))
        return await services.idempotency.once(request, body, partial(_decided, body, services))

    @routes.post(
        CANDIDATES_ROUTE, roles=CLIENTS, summary="Let a writer answer", reply=CandidatesReply, errors=(409, 502, 504)
    )
    async def candidates(request: Request, body: Annotated[CandidatesBody, read_body(CandidatesBody)]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        return await services.idempotency.once(request, body, partial(_candidates, body, services))

    return routes.all


async def _decided(body: DecisionsBody, services: Services, request: Request) -> Response:
    context = context_of(request)
    turn = partial(services.intake.large_work.run, context.caller.tenant, context.num_bytes)
    begin, texts = await turn(lambda: _tokens(body, services.tokenizer))
    prepared = await _prepared(begin, texts, body, context, services)
    return await whole_reply(request, prepared, services, _decision(request, body, prepared, services))


def _tokens(body: DecisionsBody, tokenizer: Tokenizer) -> tuple[list[int], list[list[int]]]:
    begin = templated(body, tokenizer) if body.prompt is None else tokenizer.encode(body.prompt)
    if not begin:
        raise InvalidParameter("prompt has no tokens; allowed: 1 or more", param="prompt")
    return begin, [tokenizer.encode(given(text), add_special_tokens=False) for text in body.candidates]


async def _prepared(
    begin: Sequence[int], texts: Sequence[Sequence[int]], body: object, context: RequestContext, services: Services
) -> PreparedRequest:
    """Prepare the scoring of `texts` behind `begin`, both tokens, for a client's body."""
    shared = {name: getattr(body, name) for name in ("model", "priority", "cache_salt", "metadata")}
    prompts = [[*begin, *tokens] for tokens in texts]
    completion = CompletionBody.model_construct(prompt=prompts, max_tokens=0, **shared)
    prepared = await prepare_completion(completion, context, services)
    requests = [
        replace(generate, params=replace(generate.params, prompt_logprobs=0, scored_from=len(begin)))
        for generate in prepared.requests
    ]
    return replace(prepared, requests=tuple(requests), one_prefix=True)


async def _scored(request: Request, prepared: PreparedRequest, services: Services) -> tuple[TextLogprobs, RequestStats]:
    found: TextLogprobs = [()] * len(prepared.requests)

    def take(delta: Delta) -> None:
        found[delta.index] = delta.prompt.logprobs if delta.prompt else ()
        if not found[delta.index]:
            message = "texts are to be scored, and this engine scores no prompts; allowed: routes that generate"
            raise InvalidParameter(message, param="candidates")

    return found, await consumed(answer(request, prepared, services), take)


async def scored_texts(
    request: Request, prepared: PreparedRequest, texts: Sequence[str], services: Services
) -> tuple[TextLogprobs, RequestStats]:
    """Return the log-probabilities of a writer's texts, as answers; raises `InvalidParameter` where there are none."""
    tokens = await services.intake.large_work.off_loop(
        prepared.context.caller.tenant,
        lambda: [services.tokenizer.encode(given(text), add_special_tokens=False) for text in texts],
    )
    scoring = await _prepared(prepared.requests[0].prompt_token_ids, tokens, prepared.body, prepared.context, services)
    return await _scored(request, replace(scoring, lossy=True), services)


async def _decision(
    request: Request, body: DecisionsBody, prepared: PreparedRequest, services: Services
) -> tuple[Json, RequestStats]:
    logprobs, stats = await _scored(request, prepared, services)
    candidates = _rows(body.candidates, logprobs)
    choice = max(range(len(candidates)), key=lambda i: candidates[i]["logprob"])
    shown: Json = {"id": prepared.answer_id.replace("cmpl-", "decision-", 1), "object": "decision", "model": body.model}
    return {**shown, "choice": choice, "candidates": candidates, "usage": usage(stats)}, stats


def _rows(texts: Sequence[str], logprobs: TextLogprobs) -> list[dict[str, Any]]:
    sums = [max(LOWEST_LOGPROB, math.fsum(token.logprob for token in tokens)) for tokens in logprobs]
    return [
        {"index": i, "text": text, "num_tokens": len(tokens), "logprob": logprob, "probability": share}
        for i, (text, tokens, logprob, share) in enumerate(zip(texts, logprobs, sums, shares(sums), strict=True))
    ]


def shares(logprobs: Sequence[float]) -> Sequence[float]:
    """Return the probabilities that add up to 1 and have the ratios of these."""
    most = max(logprobs, default=0.0)
    weights = [math.exp(logprob - most) for logprob in logprobs]
    return [weight / math.fsum(weights) for weight in weights]


async def _candidates(body: CandidatesBody, services: Services, request: Request) -> Response:
    prepared = await prepare_chat(body.model_copy(update={"n": 1}), context_of(request), services)
    response = await whole_reply(request, prepared, services, _best(request, body, prepared, services))
    response.headers[EXACTNESS] = "lossy"  # the target alone would have written something else
    return response


async def _best(
    request: Request, body: CandidatesBody, prepared: PreparedRequest, services: Services
) -> tuple[Json, RequestStats]:
    left, logprobs, stats = await written(body.writer, body, body.n, prepared, services), TextLogprobs(), RequestStats()
    if texts := [text.text for text in left.texts]:
        logprobs, stats = await scored_texts(request, prepared, texts, services)
    rows = [{**row, "score": math.exp(row["logprob"] / row["num_tokens"])} for row in _rows(texts, logprobs)]
    best = sorted(rows, key=lambda row: -row["score"])[: body.k]
    is_good = bool(best) and best[0]["score"] >= body.at_least
    shown: Json = {
        "id": prepared.answer_id.replace("chatcmpl-", "candidates-", 1),
        "object": "candidates",
        "model": body.model,
        "writer": left.writer,
        "verified": 1.0,
        "num_dropped": left.dropped,
        "candidates": [{**row, "index": index} for index, row in enumerate(best)],
        "choice": 0 if is_good else None,
        "why": None if is_good else "none_good_enough" if best else "all_dropped",
        "usage": usage(stats),
        "metrics": {"writer_ms": 1e3 * left.seconds, "target_ms": 1e3 * stats.device.total},
    }
    return shown, stats
