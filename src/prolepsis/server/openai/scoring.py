"""Texts behind one prompt, scored by the target in one batch that shares the prompt's cache."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.given_text import given
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.answer import answer
from prolepsis.server.openai.completions import consumed
from prolepsis.server.preparing.bodies import CompletionBody
from prolepsis.server.preparing.prepare import prepare_completion
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.services import Services
from prolepsis.server.text.deltas import Delta

_SHARED = ("model", "priority", "cache_salt", "metadata")
TextLogprobs = list[Sequence[TokenLogprobs]]


async def prepare_scoring(
    begin: Sequence[int], texts: Sequence[Sequence[int]], body: object, context: RequestContext, services: Services
) -> PreparedRequest:
    """Prepare the scoring of `texts` behind `begin`, both tokens, for a client's body. Raises `UserError`."""
    shared = {name: getattr(body, name) for name in _SHARED}
    prompts = [[*begin, *tokens] for tokens in texts]
    completion = CompletionBody.model_construct(prompt=prompts, max_tokens=0, **shared)
    prepared = await prepare_completion(completion, context, services)
    requests = [
        replace(generate, params=replace(generate.params, prompt_logprobs=0, scored_from=len(begin)))
        for generate in prepared.requests
    ]
    return replace(prepared, requests=tuple(requests), one_prefix=True)


async def scored(
    request: Request, prepared: PreparedRequest, services: Services, param: str
) -> tuple[TextLogprobs, RequestStats]:
    """Return the log-probabilities of each text's tokens; raises `InvalidParameter` where the engine scores none."""
    found: TextLogprobs = [()] * len(prepared.requests)

    def take(delta: Delta) -> None:
        found[delta.index] = delta.prompt.logprobs if delta.prompt else ()
        if not found[delta.index]:
            message = f"{param} is given, and this engine does not score prompts; allowed: routes that generate"
            raise InvalidParameter(message, param=param)

    stats = await consumed(answer(request, prepared, services), take)
    return found, stats


async def scored_texts(
    request: Request, prepared: PreparedRequest, texts: Sequence[str], services: Services, param: str
) -> tuple[TextLogprobs, RequestStats]:
    """Score a writer's texts as answers to a prepared request, as `scored`."""
    tokens = [services.tokenizer.encode(given(text), add_special_tokens=False) for text in texts]
    begin = prepared.requests[0].prompt_token_ids
    scoring = await prepare_scoring(begin, tokens, prepared.body, prepared.context, services)
    return await scored(request, replace(scoring, lossy=True), services, param)
