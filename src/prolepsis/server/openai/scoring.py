"""Texts behind one prompt, scored by the target in one batch that shares the prompt's cache."""

from collections.abc import Sequence
from dataclasses import replace

from fastapi import Request

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.answer import answer
from prolepsis.server.openai.completions import consumed
from prolepsis.server.preparing.bodies import CompletionBody
from prolepsis.server.preparing.prepare import prepare_completion
from prolepsis.server.preparing.prepared import PreparedRequest, RequestContext
from prolepsis.server.services import Services
from prolepsis.server.text.deltas import Delta

SHARED = ("model", "priority", "cache_salt", "metadata")
"""Fields of a body that its scoring has too."""


async def prepare_scoring(
    begin: Sequence[int], texts: Sequence[Sequence[int]], shared: object, context: RequestContext, services: Services
) -> PreparedRequest:
    """Prepare the scoring of `texts` behind `begin`, both tokens; `shared` is the body. Raises `UserError`."""
    fields = {name: getattr(shared, name) for name in SHARED}
    body = CompletionBody.model_construct(prompt=[[*begin, *tokens] for tokens in texts], max_tokens=0, **fields)
    prepared = await prepare_completion(body, context, services)
    requests = [
        replace(generate, params=replace(generate.params, prompt_logprobs=0, scored_from=len(begin)))
        for generate in prepared.requests
    ]
    return replace(prepared, requests=tuple(requests), one_prefix=True)


async def scored(
    request: Request, prepared: PreparedRequest, services: Services, param: str
) -> tuple[list[Sequence[TokenLogprobs]], RequestStats]:
    """Return the log-probabilities of each text's tokens; raises `InvalidParameter` where the engine scores none."""
    found: list[Sequence[TokenLogprobs]] = [()] * len(prepared.requests)

    def take(delta: Delta) -> None:
        found[delta.index] = delta.prompt.logprobs if delta.prompt else ()
        if not found[delta.index]:
            message = f"{param} is given, and this engine does not score prompts; allowed: routes that generate"
            raise InvalidParameter(message, param=param)

    stats = await consumed(answer(request, prepared, services), take)
    return found, stats
