"""Attributes of spans. No text: not of prompts and answers, nor what a client names.

`gen_ai.*`, `http.*` and `error.type` follow OpenTelemetry's conventions; those for generative AI are in development.
`gen_ai.latency.*` are the names of vLLM and SGLang. There are no conventions for speculation: its names are
`prolepsis.*`. Those of the figures that a record has too are in `core/request_figures.py`.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.recording import Replayed
from prolepsis.core.request_figures import FIGURES, Span
from prolepsis.core.rounds import Round
from prolepsis.core.stages import stages_of
from prolepsis.core.stats import RequestStats
from prolepsis.ops.tracing.keep import Kept, fallback_reasons, is_error

Attribute = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, Attribute]
OPERATIONS = dict.fromkeys(("/v1/completions", "/v1/verify/completions"), "text_completion")
"""By route; the others are `chat`."""


def hashed_tenant(tenant: str) -> str:
    """Return what stands for a tenant: the same in all servers, and no name."""
    return sha256(f"prolepsis tenant {tenant}".encode()).hexdigest()[:16]


def figures(span: Span, source: object) -> dict[str, Any]:
    """Return the figures that a kind of span has, from what they are read from."""
    return {figure.at[1]: figure.read(source) for figure in FIGURES if figure.at is not None and figure.at[0] == span}


def of_request(ended: RequestEnded, kept: Kept) -> dict[str, Attribute]:
    """Return the attributes of an HTTP request, and of its prompt if it has only one."""
    about, prompts = ended.about, ended.prompts
    values = {
        **figures("request", about),
        "gen_ai.operation.name": OPERATIONS.get(about.route, "chat"),
        "gen_ai.provider.name": "prolepsis",
        "gen_ai.request.stream": about.stream,
        "gen_ai.response.model": about.model,
        "gen_ai.response.finish_reasons": [reason for prompt in prompts for reason in prompt.finish_reasons],
        "gen_ai.usage.input_tokens": sum(prompt.stats.num_prompt_tokens for prompt in prompts),
        "gen_ai.usage.cache_read.input_tokens": sum(prompt.stats.num_cached_tokens for prompt in prompts),
        "gen_ai.usage.output_tokens": sum(prompt.stats.num_output_tokens for prompt in prompts),
        "http.request.method": "POST",
        "error.type": ended.error or (ended.end if is_error(ended.end) else None),
        "prolepsis.end": ended.end,
        "prolepsis.tenant.hash": hashed_tenant(about.tenant) if about.tenant else None,
        "prolepsis.trace.kept": kept,
    }
    if prompts:
        request, params = prompts[0].request, prompts[0].request.params
        is_json = request.grammar is not None and request.grammar.kind == "json_schema"
        values |= {
            "gen_ai.output.type": "json" if is_json else "text",
            "gen_ai.request.max_tokens": params.max_tokens,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
            "gen_ai.request.top_k": params.top_k or None,
            "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
            "gen_ai.request.presence_penalty": params.presence_penalty or None,
            "gen_ai.request.seed": params.seed,
            "gen_ai.request.choice.count": request.n if request.n > 1 else None,
        }
    return given(values) | (of_prompt(prompts[0], ended) if len(prompts) == 1 else {})


def of_prompt(prompt: PromptEnded, ended: RequestEnded) -> dict[str, Attribute]:
    """Its stages add up to the wall time of its request."""
    stats, stages = prompt.stats, stages_of(prompt, ended.about.arrived, ended.ended_at).by_stage()
    values = {
        **figures("prompt", prompt),
        "prolepsis.answer": prompt.answer,
        "prolepsis.mode.requested": prompt.request.speculation.mode,
        "prolepsis.queue.admission_s": prompt.waited_s,
        **{f"prolepsis.stage.{stage}": round(seconds, 6) for stage, seconds in stages.items()},
    }
    if prompt.answer != "unreported":
        values |= {**figures("reported", stats), "prolepsis.fallback.reasons": fallback_reasons(prompt) or None}
    if prompt.answer in ("complete", "cut"):
        values |= figures("timed", stats)
        if stats.first_token_s is not None:
            values["gen_ai.latency.time_in_model_prefill"] = stats.prefill_s
            values["gen_ai.latency.time_in_model_decode"] = stats.total_s - stats.first_token_s
    return given(values)


def of_decode(stats: RequestStats) -> dict[str, Attribute]:
    plain = sorted(stats.plain_steps.items())
    steps = {
        "prolepsis.plain.reasons": [reason for reason, _ in plain] or None,
        "prolepsis.plain.steps": [number for _, number in plain] or None,
    }
    return given(figures("decode", stats) | steps)


def of_round(verified: Round, proposal: str) -> dict[str, Attribute]:
    return given(
        {
            "prolepsis.speculation.proposal.id": proposal,
            "prolepsis.speculation.proposer.name": verified.proposer,
            "prolepsis.speculation.proposer.version": verified.version,
            "prolepsis.speculation.sample": verified.sample,
            "prolepsis.speculation.verified_nodes": verified.num_nodes,
            "prolepsis.speculation.drafted_tokens": verified.num_draft_tokens,
            "prolepsis.speculation.accepted_tokens": verified.num_accepted,
            "prolepsis.speculation.emitted_tokens": verified.num_emitted,
            "prolepsis.speculation.outcome": verified.outcome,
            "prolepsis.speculation.propose_s": verified.propose_s,
            "prolepsis.speculation.forward_s": verified.forward_s,
            "prolepsis.speculation.verify_s": verified.verify_s,
        }
    )


def of_later_rounds(stats: RequestStats) -> dict[str, Attribute]:
    """Return the sums over the rounds that are not kept."""
    return {
        "prolepsis.speculation.rounds": stats.num_drafts - len(stats.rounds),
        "prolepsis.speculation.drafted_tokens": stats.num_draft_tokens - sum(r.num_draft_tokens for r in stats.rounds),
        "prolepsis.speculation.accepted_tokens": stats.num_accepted - sum(r.num_accepted for r in stats.rounds),
    }


def of_replay(request_id: str, replayed: Replayed) -> Attributes:
    return {
        "prolepsis.request.id": request_id,
        "prolepsis.replay.outcome": replayed.outcome,
        "prolepsis.replay.position": min(difference.position for difference in replayed.differences.values()),
        "error.type": "mismatch",
    }


def of_http(method: str, route: str, status: int, kept: Kept) -> dict[str, Attribute]:
    return given(
        {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "error.type": str(status) if status >= 500 else None,
            "prolepsis.trace.kept": kept,
        }
    )


def given(values: Mapping[str, Any]) -> dict[str, Attribute]:
    """Return what is known; an empty text is not."""
    return {name: value for name, value in values.items() if value is not None and value != ""}
