"""A request's sampling parameters, and the request as policies see it: facts of its body, headers and caller."""

import math
import secrets
from datetime import datetime

from prolepsis.control.policy.conditions import ToolChoiceKind
from prolepsis.core.facts import BUDGET, DOMAIN, RequestFacts, declared, stated_language
from prolepsis.core.requests import SamplingDefaults, SamplingParams
from prolepsis.server.preparing.bodies import (
    STRUCTURED_FORMS,
    AllowedChoice,
    ChatBody,
    CompletionBody,
    GenerationBody,
    NamedTool,
)
from prolepsis.server.preparing.prepared import RequestContext

DEFAULT_COMPLETION_TOKENS = 16
"""OpenAI's default of `max_tokens` for completions; a chat answer may fill the context."""
_SEED_BITS = 53
"""Size of a drawn seed: every JSON reader keeps numbers of this size exactly."""
_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key")
"""No rule may depend on what they hold."""


def sampling_params(body: GenerationBody, defaults: SamplingDefaults, logprobs: int | None = None) -> SamplingParams:
    """Fill in `defaults` where the body leaves parameters out; `max_tokens` follows when the prompt is tokenised."""
    if body.logprob_token_ids:
        logprobs = logprobs or 0
    echoed = logprobs if isinstance(body, CompletionBody) and body.echo else None
    return SamplingParams(
        temperature=_given(body.temperature, defaults.temperature),
        top_k=defaults.top_k if body.top_k is None else max(0, body.top_k),
        top_p=_given(body.top_p, defaults.top_p),
        min_p=_given(body.min_p, defaults.min_p),
        repetition_penalty=_given(body.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_given(body.presence_penalty, 0.0),
        frequency_penalty=_given(body.frequency_penalty, 0.0),
        logit_bias=tuple(sorted((body.logit_bias or {}).items())),
        min_tokens=body.min_tokens or 0,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        seed=secrets.randbits(_SEED_BITS) if body.seed is None else body.seed,
        logprobs=logprobs,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        logprob_token_ids=tuple(body.logprob_token_ids or ()),
        prompt_logprobs=echoed if body.prompt_logprobs is None else body.prompt_logprobs,
    )


def request_facts(
    body: GenerationBody,
    params: SamplingParams,
    context: RequestContext,
    *,
    prompt_tokens: int | None,
    time: datetime,
    targeting_key: str | None = None,
) -> RequestFacts:
    """Return the facts of a checked body; a /v1/responses body is read as the chat it stands for.

    `prompt_tokens` are those of the longest prompt, None where they were not counted.
    """
    caller, headers = context.caller, {k: v for k, v in context.headers.items() if k not in _SECRET_HEADERS}
    return RequestFacts(
        route=context.route,
        model=body.model,
        tenant=caller.tenant,
        tier=caller.tier,
        key=caller.key_id,
        roles=frozenset(caller.roles),
        budget=caller.budget or declared(body.metadata, BUDGET),
        tools=tool_choice(body) != "none",
        tool_choice=tool_choice(body),
        structured_output=structured_output(body),
        stream=bool(body.stream),
        priority=body.priority or 0,
        n=body.n or 1,
        prompt_tokens=prompt_tokens,
        max_tokens=_max_tokens(body, context),
        temperature=params.temperature,
        top_p=params.top_p,
        top_k=params.top_k,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        domain=declared(body.metadata, DOMAIN),
        language=stated_language(body.metadata, headers),
        headers=headers,
        time=time,
        targeting_key=targeting_key,
    )


def tool_choice(body: GenerationBody) -> ToolChoiceKind:
    """Return how the request lets the answer call tools; without tools it does not."""
    if not isinstance(body, ChatBody) or not body.tools:
        return "none"
    if isinstance(body.tool_choice, NamedTool):
        return "named"
    return "allowed" if isinstance(body.tool_choice, AllowedChoice) else body.tool_choice or "auto"


def structured_output(body: GenerationBody) -> str:
    """Return the form that the request asks of its answer (`RequestFacts.structured_output`)."""
    if (wanted := body.structured_outputs) is not None:
        form = next(name for name, attribute in STRUCTURED_FORMS.items() if getattr(wanted, attribute) is not None)
        return {"json": "json_schema", "structural_tag": "grammar"}.get(form, form)
    if body.response_format is None or body.response_format.type == "text":
        return "none"
    return {"structural_tag": "grammar"}.get(body.response_format.type, body.response_format.type)


def _max_tokens(body: GenerationBody, context: RequestContext) -> float:
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    if asked is not None:
        return asked
    if isinstance(body, CompletionBody) and not context.clamps:
        return max(DEFAULT_COMPLETION_TOKENS, body.min_tokens or 0)
    return math.inf


def _given(value: float | None, default: float) -> float:
    return default if value is None else value
