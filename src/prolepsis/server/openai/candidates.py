"""POST /v1/candidates: several answers to one conversation by a writer, with the target's scores.

An answer is not what the target alone would have written, so `x-exactness` says `lossy`.
"""

import math
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated, Self

from fastapi import Request
from fastapi.responses import Response
from pydantic import Field, model_validator

from prolepsis.control.web.body_reader import read_body
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.fields import Reply
from prolepsis.control.web.routes import CLIENTS, Route, Routes
from prolepsis.core.stats import RequestStats
from prolepsis.core.validation import Number
from prolepsis.server.answering.stream import NAMED_SSE
from prolepsis.server.answering.usage import Json, usage
from prolepsis.server.known import CANDIDATES_ROUTE
from prolepsis.server.openai.routes import EXACTNESS, HEADERS, named, streamed, whole_reply
from prolepsis.server.openai.scoring import TextLogprobs, scored_texts
from prolepsis.server.openai.written import written
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.prepare import prepare_chat
from prolepsis.server.preparing.prepared import PreparedRequest, context_of
from prolepsis.server.services import Models, Services

_MAX_TEXTS = 16


class CandidatesBody(ChatBody):
    """A conversation, and how many answers are wanted of how many."""

    n: Annotated[int, Field(ge=1, le=_MAX_TEXTS)] = 4
    k: Annotated[int, Field(ge=1, le=_MAX_TEXTS)] = 1
    writer: str | None = None  # by name; None: the first one
    at_least: Annotated[Number, Field(ge=0, le=1)] = 0.0  # the least score of a choice

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.k > self.n:
            raise ValueError(f"'k' is {self.k}; allowed: 1 to n ({self.n})")
        if self.tools or self.logprobs or self.prompt_logprobs is not None:
            raise ValueError("'tools', 'logprobs' and 'prompt_logprobs' are not for candidates; allowed: none of them")
        return self


class CandidateText(Reply):
    rank: int  # from 1
    text: str
    score: float  # geometric mean of the probabilities that the target gives its tokens
    num_tokens: int  # of the target


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
    post = partial(routes.post, roles=CLIENTS, errors=(409, 502, 504), streams="text/event-stream", headers=HEADERS)

    @post(CANDIDATES_ROUTE, summary="Write several answers and score them", reply=CandidatesReply)
    async def candidates(request: Request, body: Annotated[CandidatesBody, read_body(CandidatesBody)]) -> Response:
        body = named(body, models, request)
        services = models.of(body.model, caller_of(request))
        return await services.idempotency.once(request, body, partial(_candidates, body, services))

    return routes.all


async def _candidates(body: CandidatesBody, services: Services, request: Request) -> Response:
    prepared = await prepare_chat(body.model_copy(update={"n": 1}), context_of(request), services)
    work = _Candidates(request, body, prepared, services)
    if body.stream:
        response = streamed(work.events(), prepared, services, NAMED_SSE)
    else:
        response = await whole_reply(request, prepared, services, work.whole())
    response.headers[EXACTNESS] = "lossy"
    return response


class _Candidates:
    """One request under way."""

    def __init__(self, request: Request, body: CandidatesBody, prepared: PreparedRequest, services: Services) -> None:
        self._request, self._body, self._prepared, self._services = request, body, prepared, services
        self._stats = RequestStats()

    async def whole(self) -> tuple[Json, RequestStats]:
        async with aclosing(self.events()) as events:
            *_, shown = [event async for event in events]
        del shown["type"]
        return shown, self._stats

    async def events(self) -> AsyncGenerator[Json, None]:
        """Yield what is written, then the reply."""
        body, prepared, services, logprobs = self._body, self._prepared, self._services, TextLogprobs()
        left = await written(body.writer, body, body.n, prepared, services)
        counts: Json = {"num_written": left.num_written, "num_dropped": dict(left.dropped)}
        yield {"type": "candidates.written", **counts}
        if texts := [text.text for text in left.texts]:
            logprobs, self._stats = await scored_texts(self._request, prepared, texts, services, "writer")
        scores = [math.exp(math.fsum(token.logprob for token in tokens) / len(tokens)) for tokens in logprobs]
        best = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.k]
        is_good = bool(best) and scores[best[0]] >= body.at_least
        candidates = [
            {"rank": rank, "text": texts[i], "score": scores[i], "num_tokens": len(logprobs[i])}
            for rank, i in enumerate(best, 1)
        ]
        yield {
            "type": "candidates.done",
            "id": prepared.answer_id.replace("chatcmpl-", "candidates-", 1),
            "object": "candidates",
            "model": body.model,
            "writer": left.writer,
            "verified": 1.0,
            **counts,
            "candidates": candidates,
            "choice": 0 if is_good else None,
            "why": None if is_good else "none_good_enough" if best else "all_dropped",
            "usage": usage(self._stats),
            "metrics": {"writer_ms": 1e3 * left.seconds, "target_ms": 1e3 * self._stats.device.total},
        }
