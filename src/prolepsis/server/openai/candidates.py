"""POST /v1/candidates: several texts for one prompt, by a writer or by the target, and the target's score of each.

The answer is not what the target alone would have written, so `x-exactness` says `lossy`.
"""

import math
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Self

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import MaxTokens, Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.config import TARGET
from prolepsis.core.given_text import given
from prolepsis.core.stats import RequestStats
from prolepsis.core.validation import Number
from prolepsis.server.admission.controller import become_economy
from prolepsis.server.answering.answer import answer
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.answering.usage import Json, usage
from prolepsis.server.known import CANDIDATES_ROUTE
from prolepsis.server.openai.completions import consumed
from prolepsis.server.openai.routes import EXACTNESS, HEADERS, named, streamed, whole_reply
from prolepsis.server.openai.scoring import prepare_scoring, scored
from prolepsis.server.openai.written import allowed_writer, asked_of_writer, sifted
from prolepsis.server.preparing.bodies import (
    ChatBody,
    CompletionBody,
    GenerationBody,
    Messages,
    ResponseFormat,
    SharedBody,
    TemplateBody,
)
from prolepsis.server.preparing.prepare import prepare_chat, prepare_completion
from prolepsis.server.preparing.prepared import PreparedRequest, context_of
from prolepsis.server.services import Models, Services
from prolepsis.server.text.deltas import Delta
from prolepsis.server.writers import TextWriter, WriterText

LOSSY = "lossy"
MAX_TEXTS = 16


class CandidatesBody(SharedBody, TemplateBody):
    """A text or a conversation, and how many texts are wanted of how many."""

    prompt: str | None = None
    messages: Messages | None = None
    max_tokens: MaxTokens | None = None
    response_format: ResponseFormat | None = None
    n: Annotated[int, Field(ge=1, le=MAX_TEXTS)] = 4
    k: Annotated[int, Field(ge=1, le=MAX_TEXTS)] = 1
    writer: str | None = None  # by name; None: the target samples the texts itself
    at_least: Annotated[Number, Field(ge=0, le=1)] = 0.0  # the least score of a choice

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either 'prompt' or 'messages'")
        if self.k > self.n:
            raise ValueError(f"'k' is {self.k}; allowed: 1 to n ({self.n})")
        return self

    @property
    def generation(self) -> GenerationBody:
        """The request by which the target would write the texts."""
        num = 1 if self.writer else self.n
        kind, own = (ChatBody, {"logprobs": True}) if self.messages else (CompletionBody, {"logprobs": 0})
        fields = {name: value for name, value in self if name in kind.model_fields and value is not None}
        prompt = {} if self.messages else {"prompt": [self.prompt]}
        return kind.model_construct(**{**fields, **own, **prompt, "n": num})


class CandidateText(Reply):
    rank: int  # from 1
    text: str
    score: float  # geometric mean of the probabilities that the target gives its tokens
    num_tokens: int  # of the target
    finish_reason: str


class CandidatesReply(Reply):
    id: str
    object: str
    model: str
    writer: str
    verified: float  # share of the texts that the target scored
    num_written: int
    num_dropped: dict[str, int]  # texts without a score, by why
    candidates: list[CandidateText]  # the best ones
    choice: int | None  # index of the best one, if it is good enough
    why: str | None  # why there is no choice
    usage: Json  # of the target
    metrics: Json


def candidate_routes(models: Models) -> Sequence[Route]:
    routes = Routes()

    @routes.post(
        CANDIDATES_ROUTE,
        roles=CLIENTS,
        summary="Write several texts and score them",
        reply=CandidatesReply,
        errors=(409, 502, 504),
        streams="text/event-stream",
        headers=HEADERS,
    )
    async def candidates(request: Request, body: Annotated[CandidatesBody, read_body(CandidatesBody)]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        if body.service_tier == "flex":
            become_economy(request)
        return await services.idempotency.once(request, body, partial(_candidates, body, services))

    return routes.all


async def _candidates(body: CandidatesBody, services: Services, request: Request) -> Response:
    context, generation = context_of(request), body.generation
    if isinstance(generation, ChatBody):
        prepared = await prepare_chat(generation, context, services)
    else:
        assert isinstance(generation, CompletionBody), "it is one of the two"
        prepared = await prepare_completion(generation, context, services)
    writer = allowed_writer(body.writer, prepared, services) if body.writer else None
    work = _Candidates(request, body, replace(prepared, lossy=True), services, writer)
    if body.stream:
        response = streamed(work.events(), prepared, services, NAMED_SSE)
    else:
        response = await whole_reply(request, prepared, services, work.whole())
    response.headers[EXACTNESS] = LOSSY
    return response


class _Candidates:
    """One request under way."""

    def __init__(
        self,
        request: Request,
        body: CandidatesBody,
        prepared: PreparedRequest,
        services: Services,
        writer: TextWriter | None,
    ) -> None:
        self._request, self._body, self._prepared, self._services = request, body, prepared, services
        self._writer, self._writer_s = writer, 0.0
        self._num_written = body.n
        self._dropped = Counter[str]()
        self._stats = RequestStats()

    async def whole(self) -> tuple[Json, RequestStats]:
        async with aclosing(self.events()) as events:
            *_, shown = [event async for event in events]
        del shown["type"]
        return shown, self._stats

    async def events(self) -> AsyncGenerator[Json, None]:
        """Yield what is written, then the reply."""
        writer, texts, logprobs = self._writer, list[WriterText](), list[Sequence[float]]()
        if writer is None:
            texts, logprobs = await self._sampled()
        else:
            texts = await self._written(writer)
        counts: Json = {"num_written": self._num_written, "num_dropped": dict(self._dropped)}
        yield {"type": "candidates.written", **counts}
        if writer is not None and texts:
            logprobs = await self._scored(texts)
        scores = [math.exp(math.fsum(tokens) / len(tokens)) for tokens in logprobs]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: self._body.k]
        is_good = bool(best) and scores[best[0]] >= self._body.at_least
        yield {
            "type": "candidates.done",
            "id": f"candidates-{self._prepared.answer_id.partition('-')[2]}",
            "object": "candidates",
            "model": self._body.model,
            "writer": TARGET if writer is None else writer.name,
            "verified": 1.0,
            **counts,
            "candidates": [
                {
                    "rank": rank,
                    "text": texts[i].text,
                    "score": scores[i],
                    "num_tokens": len(logprobs[i]),
                    "finish_reason": texts[i].finish_reason,
                }
                for rank, i in enumerate(best, 1)
            ],
            "choice": 0 if is_good else None,
            "why": None if is_good else "none_good_enough" if best else "all_dropped",
            "usage": usage(self._stats),
            "metrics": {"writer_ms": 1e3 * self._writer_s, "target_ms": 1e3 * self._stats.device.total},
        }

    async def _sampled(self) -> tuple[list[WriterText], list[Sequence[float]]]:
        """Return distinct texts of the target, and the log-probabilities that it sampled them with."""
        deltas: list[list[Delta]] = [[] for _ in range(self._body.n)]
        parts = answer(self._request, self._prepared, self._services)
        self._stats = await consumed(parts, lambda delta: deltas[delta.index].append(delta))
        found = dict[str, tuple[WriterText, Sequence[float]]]()
        for sample in deltas:
            text, reason = "".join(delta.text for delta in sample), sample[-1].finish_reason
            logprobs = [token.logprob or 0.0 for delta in sample for token in delta.logprobs or ()]
            if reason == "content_filter" or not text.strip() or not logprobs:
                self._dropped["policy" if reason == "content_filter" else "empty"] += 1
            elif text in found:
                self._dropped["duplicate"] += 1
            else:
                found[text] = WriterText(text, reason or "stop"), logprobs
        return [text for text, _ in found.values()], [logprobs for _, logprobs in found.values()]

    async def _written(self, writer: TextWriter) -> list[WriterText]:
        route = "/v1/chat/completions" if self._body.messages else "/v1/completions"
        written = await self._services.writers.write(writer, route, asked_of_writer(self._body, n=self._body.n))
        self._num_written, self._writer_s = len(written.texts), written.seconds
        left = await sifted(written.texts, self._prepared, self._services)
        self._dropped = left.dropped
        return left.texts

    async def _scored(self, texts: Sequence[WriterText]) -> list[Sequence[float]]:
        """Return the log-probabilities of each text's tokens behind the prompt."""
        services, context = self._services, self._prepared.context
        tokens = [services.tokenizer.encode(given(text.text), add_special_tokens=False) for text in texts]
        begin = self._prepared.requests[0].prompt_token_ids
        prepared = replace(await prepare_scoring(begin, tokens, self._body, context, services), lossy=True)
        found, self._stats = await scored(self._request, prepared, services, "writer")
        return [[token.logprob for token in of_text] for of_text in found]
