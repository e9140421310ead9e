"""Chat and text completions put together: one JSON document, or a stream of chunks."""

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from functools import partial

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.answer import Parts
from prolepsis.server.answering.stream import Voice, padded
from prolepsis.server.answering.usage import Json, metrics, usage
from prolepsis.server.openai.formats import OF_PROMPT, Format, prompt_logprobs
from prolepsis.server.preparing.bodies import ChatBody
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.services import Services
from prolepsis.server.text.deltas import Delta


async def whole_completion(
    parts: Parts, prepared: PreparedRequest, services: Services, form: Format
) -> tuple[Json, RequestStats]:
    deltas: list[list[Delta]] = [[] for _ in range(prepared.num_choices)]
    stats = await consumed(parts, lambda delta: deltas[delta.index].append(delta))
    size, tenant = prepared.reply_bytes(stats.num_output_tokens), prepared.context.caller.tenant
    choices = await services.intake.large_work.run(tenant, size, lambda: [form.choice(sample) for sample in deltas])
    reply = {
        **_envelope(prepared, services, form.object),
        "choices": choices,
        **(dict.fromkeys(OF_PROMPT) if isinstance(prepared.body, ChatBody) else {}),
        **_prompts(prepared),
        **_scores(deltas[0][0], prepared),
    }
    return {**reply, **await _accounts(prepared, services, stats, form)}, stats


async def consumed(parts: Parts, take: Callable[[Delta], object]) -> RequestStats:
    stats = RequestStats()
    async with aclosing(parts):
        async for part in parts:
            if isinstance(part, Delta):
                take(part)
            else:
                stats = part
    return stats


class CompletionChunks(Voice):
    """The chunks of one answer; the last one has no choices but the usage and metrics that were asked for."""

    def __init__(self, prepared: PreparedRequest, services: Services, form: Format) -> None:
        options = prepared.body.stream_options
        self.shows_progress = prepared.speculation.requested.metrics
        self._prepared = prepared
        self._services = services
        self._form = form
        self._envelope = _envelope(prepared, services, form.chunk_object)
        self._shows_usage = bool(options and options.include_usage)
        self._shows_running = bool(self._shows_usage and options and options.continuous_usage_stats)
        self._is_padded = bool(options and options.include_obfuscation)
        self._of_first, self._num_tokens = _prompts(prepared), 0

    async def of(self, parts: Parts) -> AsyncGenerator[Json, None]:
        async with aclosing(parts):
            async for part in parts:
                if isinstance(part, Delta):
                    self._num_tokens += part.num_tokens
                    if (choice := self._form.chunk_choice(part)) is not None:
                        yield self._chunk(choice, _scores(part, self._prepared))
                elif self._shows_usage or self.shows_progress:
                    accounts = await _accounts(self._prepared, self._services, part, self._form)
                    if not self._shows_usage:
                        del accounts["usage"]
                    yield {**self._envelope, "choices": [], **accounts}

    def opening(self) -> Sequence[Json]:
        return [self._chunk(choice, {}) for choice in self._form.opening()]

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        if not self.shows_progress or progress is None:
            return ()
        prompt = {"read": progress.num_read, "of": progress.num_tokens}
        return [{**self._envelope, "choices": [], "speculation": {"prompt": prompt}}]

    def _chunk(self, choice: Json, scores: Json) -> Json:
        """Return a chunk; the first one shows the prompt too."""
        chunk = {**self._envelope, "choices": [choice], **self._of_first, **scores}
        if self._shows_usage:
            prompt, tokens = self._prepared.num_prompt_tokens, self._num_tokens
            running = {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens}
            chunk["usage"] = running if self._shows_running else None
        self._of_first = {}
        return padded(chunk) if self._is_padded else chunk


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
    encode = partial(services.tokenizer.encode, text, add_special_tokens=False)
    return len(await services.intake.large_work.run(prepared.context.caller.tenant, len(text), encode))
