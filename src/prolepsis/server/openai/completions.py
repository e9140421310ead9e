"""Chat and text completions put together: one JSON document, or a stream of chunks."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial

from prolepsis.core.stats import RequestStats
from prolepsis.server.deltas import Delta
from prolepsis.server.openai.bodies import ChatBody
from prolepsis.server.openai.formats import Format, prompt_logprobs
from prolepsis.server.openai.prepared import PreparedRequest
from prolepsis.server.openai.usage import Json, metrics, usage
from prolepsis.server.services import Services
from prolepsis.server.stream import padded

Parts = AsyncGenerator[Delta | RequestStats, None]


async def whole_completion(
    parts: Parts, prepared: PreparedRequest, services: Services, form: Format
) -> tuple[Json, RequestStats]:
    """Return the document and the request's stats."""
    deltas: list[list[Delta]] = [[] for _ in range(prepared.num_choices)]
    stats = await consumed(parts, lambda delta: deltas[delta.index].append(delta))
    size, tenant = prepared.reply_bytes(stats.num_output_tokens), prepared.context.caller.tenant
    choices = await services.intake.large_work.run(tenant, size, lambda: [form.choice(sample) for sample in deltas])
    reply = {
        **_envelope(prepared, services, form.object),
        "choices": choices,
        **_prompts(prepared),
        **_scores(deltas[0][0], prepared),
    }
    return {**reply, **await _accounts(prepared, services, stats, form)}, stats


async def consumed(parts: Parts, take: Callable[[Delta], object]) -> RequestStats:
    """Give each delta to `take`, and return the stats."""
    stats = RequestStats()
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Delta):
                take(part)
            else:
                stats = part
    return stats


async def completion_chunks(
    parts: Parts, prepared: PreparedRequest, services: Services, form: Format
) -> AsyncGenerator[Json, None]:
    """Yield a chunk per delta; the last one has no choices but the usage and metrics that were asked for."""
    envelope = _envelope(prepared, services, form.chunk_object)
    options = prepared.body.stream_options
    shows_usage = bool(options and options.include_usage)
    shows_running = bool(shows_usage and options and options.continuous_usage_stats)
    ending: Json = {"usage": None} if shows_usage else {}
    opening, running = _prompts(prepared), _RunningUsage(prepared)
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Delta):
                choice = form.chunk_choice(part)
                if shows_running:
                    ending = {"usage": running.after(part)}
                if choice is not None:
                    chunk = {**envelope, "choices": [choice], **opening, **_scores(part, prepared), **ending}
                    yield padded(chunk) if options and options.include_obfuscation else chunk
                    opening = {}
            elif shows_usage or prepared.speculation.requested.metrics:
                accounts = await _accounts(prepared, services, part, form)
                if not shows_usage:
                    del accounts["usage"]
                yield {**envelope, "choices": [], **accounts}


class _RunningUsage:
    """The usage so far, for chunks that carry it."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prompt_tokens = prepared.num_prompt_tokens
        self._num_tokens = 0

    def after(self, delta: Delta) -> Json:
        self._num_tokens += delta.num_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._num_tokens,
            "total_tokens": self._prompt_tokens + self._num_tokens,
        }


def _envelope(prepared: PreparedRequest, services: Services, kind: str) -> Json:
    return {
        "id": prepared.answer_id,
        "object": kind,
        "created": int(time.time()),
        "model": prepared.body.model,
        "system_fingerprint": services.client.info.fingerprint,
    }


def _prompts(prepared: PreparedRequest) -> Json:
    """The prompt's tokens, where they are asked for: of the first prompt, as vLLM shows them."""
    return {"prompt_token_ids": prepared.requests[0].prompt_token_ids} if prepared.body.return_token_ids else {}


def _scores(delta: Delta, prepared: PreparedRequest) -> Json:
    """The log-probabilities of a chat's prompt, where they are asked for; completions have them in their choices."""
    is_first = isinstance(prepared.body, ChatBody) and delta.index == 0
    return prompt_logprobs(delta, prepared) if is_first else {}


async def _accounts(prepared: PreparedRequest, services: Services, stats: RequestStats, form: Format) -> Json:
    """Return usage, metrics if asked for, and the seed, by which the request can be made again."""
    counted = usage(
        stats,
        has_prediction=prepared.has_prediction,
        count_rejected=services.config.count_rejected_prediction_tokens,
        reasoning_tokens=await num_tokens(form.reasoning, prepared, services) if form.reasoning else None,
    )
    shown: Json = {"usage": counted, "seed": prepared.seed}
    if prepared.speculation.requested.metrics:
        shown["metrics"] = metrics(stats, prepared.speculation, num_samples=prepared.num_choices)
    return shown


async def num_tokens(text: str, prepared: PreparedRequest, services: Services) -> int:
    """Return how many tokens a part of an answer has."""
    encode = partial(services.tokenizer.encode, text, add_special_tokens=False)
    return len(await services.intake.large_work.run(prepared.context.caller.tenant, len(text), encode))
