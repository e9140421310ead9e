"""A request as policies see it: facts of its body, headers and caller."""

import math
from collections.abc import Callable
from datetime import datetime

from prolepsis.control.policy.conditions import ToolChoiceKind
from prolepsis.core.facts import BUDGET, DOMAIN, RequestFacts, declared, stated_language
from prolepsis.core.requests import SamplingParams, shaping
from prolepsis.server.preparing.bodies import (
    STRUCTURED_FORMS,
    AllowedChoice,
    ChatBody,
    CompletionBody,
    GenerationBody,
    NamedTool,
)
from prolepsis.server.preparing.language import text_of
from prolepsis.server.preparing.limits import DEFAULT_COMPLETION_TOKENS
from prolepsis.server.preparing.prepared import RequestContext

_SECRET_HEADERS = ("authorization", "cookie", "proxy-authorization", "x-api-key")
"""No rule may depend on what they hold."""


def request_facts(
    body: GenerationBody,
    params: SamplingParams,
    context: RequestContext,
    *,
    prompt_tokens: int | None,
    time: datetime,
    targeting_key: str | None = None,
    detect: Callable[[str], str | None] | None = None,
) -> RequestFacts:
    """Return the facts of a checked body; a /v1/responses body is read as the chat it stands for.

    `prompt_tokens` are those of the longest prompt, None where they were not counted. `detect` guesses the language of
    a text, where the request states none; None: nothing does.
    """
    max_tokens: float | None = body.answer_tokens
    if max_tokens is None and isinstance(body, CompletionBody) and not context.clamps:
        max_tokens = max(DEFAULT_COMPLETION_TOKENS, body.min_tokens or 0)
    caller, headers = context.caller, {k: v for k, v in context.headers.items() if k not in _SECRET_HEADERS}
    stated = stated_language(body.metadata, headers)
    detected = detect(text_of(body)) if detect is not None and not stated else None
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
        max_tokens=math.inf if max_tokens is None else max_tokens,
        **shaping(params),
        domain=declared(body.metadata, DOMAIN),
        language=stated or detected,
        language_detected=detected is not None,
        headers=headers,
        time=time,
        targeting_key=targeting_key,
    )


def tool_choice(body: GenerationBody) -> ToolChoiceKind:
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
