"""POST /v1/chat/completions and POST /v1/completions."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from prolepsis.core.stats import RequestStats
from prolepsis.server.accounts import metrics, usage
from prolepsis.server.admission import Admitted, admit_chat, admit_completion
from prolepsis.server.bodies import ChatBody, CompletionBody
from prolepsis.server.body_reader import read_body
from prolepsis.server.choices import Delta, generate_deltas
from prolepsis.server.disconnect import ClientDisconnected, until_disconnect
from prolepsis.server.formats import ChatFormat, CompletionFormat, Format, Json, put_together
from prolepsis.server.room import Room
from prolepsis.server.sse import EventStream

CLIENT_CLOSED_REQUEST = 499
"""For logs and counters only: the client is gone and reads no status."""


def generation_routes(room: Room) -> APIRouter:
    router = APIRouter()
    chat_format, completion_format = ChatFormat(), CompletionFormat()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = await read_body(request, ChatBody, room.config.max_body_bytes)
        return await _answer(request, await admit_chat(body, room), room, chat_format)

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = await read_body(request, CompletionBody, room.config.max_body_bytes)
        return await _answer(request, await admit_completion(body, room), room, completion_format)

    return router


async def _answer(request: Request, admitted: Admitted, room: Room, form: Format) -> Response:
    if admitted.stream:
        return EventStream(_chunks(admitted, room, form))
    try:
        reply, stats = await until_disconnect(request.receive, _whole(admitted, room, form))
    except ClientDisconnected:
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    return JSONResponse(reply, headers={"x-spec-effective": _effective(stats)})


async def _whole(admitted: Admitted, room: Room, form: Format) -> tuple[Json, RequestStats]:
    deltas: list[list[Delta]] = [[] for _ in range(admitted.request.n)]
    stats = RequestStats()
    async with aclosing(generate_deltas(room.client, admitted.request, room.tokenizer)) as parts:
        async for part in parts:
            if isinstance(part, Delta):
                deltas[part.index].append(part)
            else:
                stats = part
    choices = [form.choice(put_together(sample)) for sample in deltas]
    reply = {**_envelope(admitted, room, form.object), "choices": choices, **_accounts(admitted, room, stats)}
    return reply, stats


async def _chunks(admitted: Admitted, room: Room, form: Format) -> AsyncGenerator[Json, None]:
    """Yield a chunk per delta; the last one has no choices but the usage and metrics that were asked for."""
    envelope = _envelope(admitted, room, form.chunk_object)
    ending: Json = {"usage": None} if admitted.include_usage else {}
    async with aclosing(generate_deltas(room.client, admitted.request, room.tokenizer)) as parts:
        async for part in parts:
            if isinstance(part, Delta):
                yield {**envelope, "choices": [form.chunk_choice(part)], **ending}
            elif admitted.include_usage or admitted.include_metrics:
                accounts = _accounts(admitted, room, part)
                if not admitted.include_usage:
                    del accounts["usage"]
                yield {**envelope, "choices": [], **accounts}


def _envelope(admitted: Admitted, room: Room, kind: str) -> Json:
    return {
        "id": admitted.request.request_id,
        "object": kind,
        "created": int(time.time()),
        "model": admitted.model,
        "system_fingerprint": room.client.info.fingerprint,
    }


def _accounts(admitted: Admitted, room: Room, stats: RequestStats) -> Json:
    """`metrics` is null for several samples: their times and steps cannot be told apart."""
    count_rejected = room.config.count_rejected_prediction_tokens
    shown: Json = {"usage": usage(stats, has_prediction=admitted.has_prediction, count_rejected=count_rejected)}
    if admitted.include_metrics:
        shown["metrics"] = metrics(stats) if admitted.request.n == 1 else None
    return shown


def _effective(stats: RequestStats) -> str:
    return f"mode={stats.mode.mode};reason={stats.mode.reason};plan={stats.mode.plan_version}"
