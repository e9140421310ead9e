"""Chat and text completions put together: one JSON document, or a stream of chunks."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from prolepsis.api.deltas import Delta
from prolepsis.api.openai.prepared import Admitted
from prolepsis.api.openai.usage import Counting, Format, Json, metrics, usage
from prolepsis.api.room import Room
from prolepsis.api.tokenizer import off_loop
from prolepsis.core.stats import RequestStats

Parts = AsyncGenerator[Delta | RequestStats, None]


async def whole_completion(parts: Parts, admitted: Admitted, room: Room, form: Format) -> tuple[Json, RequestStats]:
    """Return the document and the request's stats."""
    deltas: list[list[Delta]] = [[] for _ in range(admitted.num_choices)]
    stats = RequestStats()
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Delta):
                deltas[part.index].append(part)
            else:
                stats = part
    choices = [form.choice(sample) for sample in deltas]
    reply = {**_envelope(admitted, room, form.object), "choices": choices, **_prompts(admitted)}
    return {**reply, **await _accounts(admitted, room, stats, form)}, stats


async def completion_chunks(parts: Parts, admitted: Admitted, room: Room, form: Format) -> AsyncGenerator[Json, None]:
    """Yield a chunk per delta; the last one has no choices but the usage and metrics that were asked for."""
    envelope = _envelope(admitted, room, form.chunk_object)
    showing = admitted.showing
    ending: Json = {"usage": None} if showing.usage else {}
    opening, running = _prompts(admitted), _RunningUsage(admitted)
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Delta):
                choice = form.chunk_choice(part)
                if showing.running_usage:
                    ending = {"usage": running.after(part)}
                if choice is not None:
                    yield {**envelope, "choices": [choice], **opening, **ending}
                    opening = {}
            elif showing.usage or admitted.speculation.metrics:
                accounts = await _accounts(admitted, room, part, form)
                if not showing.usage:
                    del accounts["usage"]
                yield {**envelope, "choices": [], **accounts}


class _RunningUsage:
    """The usage so far, for chunks that carry it."""

    def __init__(self, admitted: Admitted) -> None:
        self._prompt_tokens = admitted.num_prompt_tokens
        self._num_tokens = 0

    def after(self, delta: Delta) -> Json:
        self._num_tokens += delta.num_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._num_tokens,
            "total_tokens": self._prompt_tokens + self._num_tokens,
        }


def _envelope(admitted: Admitted, room: Room, kind: str) -> Json:
    return {
        "id": admitted.answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": admitted.model,
        "system_fingerprint": room.client.info.fingerprint,
    }


def _prompts(admitted: Admitted) -> Json:
    """The prompt's tokens, where they are asked for: of the first prompt, as vLLM shows them."""
    return {"prompt_token_ids": admitted.requests[0].prompt_token_ids} if admitted.showing.token_ids else {}


async def _accounts(admitted: Admitted, room: Room, stats: RequestStats, form: Format) -> Json:
    """`metrics` is null for several samples: their times and steps cannot be told apart."""
    shown: Json = {"usage": usage(stats, await counting(admitted, room, form.reasoning))}
    if admitted.speculation.metrics:
        asked = admitted.speculation
        shown["metrics"] = metrics(stats, asked.ruling, asked.flag) if admitted.num_choices == 1 else None
    return shown


async def counting(admitted: Admitted, room: Room, reasoning: str) -> Counting:
    """Return what is counted of an answer that thought `reasoning`."""
    thought = await _num_tokens(reasoning, room) if reasoning else None
    has_prediction = admitted.showing.has_prediction
    return Counting(has_prediction, room.config.count_rejected_prediction_tokens, thought)


async def _num_tokens(text: str, room: Room) -> int:
    return await off_loop(len(text), lambda: len(room.tokenizer.encode(text, add_special_tokens=False)))
