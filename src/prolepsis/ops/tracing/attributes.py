"""Attributes of spans, by the figures of a request. No text: not of prompts and answers, nor what a client names."""

from collections.abc import Mapping, Sequence
from hashlib import sha256

from prolepsis.core.ended import PromptEnded, RequestEnded
from prolepsis.core.recording import Replayed
from prolepsis.core.rounds import Round
from prolepsis.core.stages import Stage, stages_of
from prolepsis.core.stats import RequestStats
from prolepsis.ops.tracing import names
from prolepsis.ops.tracing.keep import Kept, fallback_reasons, is_error

Attribute = str | bool | int | float | Sequence[str] | Sequence[int]
Attributes = Mapping[str, Attribute]
Found = dict[str, Attribute | None]
"""None: the request has no such thing."""

_STAGES: Mapping[Stage, str] = {
    "receive": names.STAGE_RECEIVE,
    "queue": names.STAGE_QUEUE,
    "prefill": names.STAGE_PREFILL,
    "decode": names.STAGE_DECODE,
    "others": names.STAGE_OTHERS,
    "client": names.STAGE_CLIENT,
    "server": names.STAGE_SERVER,
}
OPERATIONS = dict.fromkeys(("/v1/completions", "/v1/verify/completions"), "text_completion")
"""By route; the others are `chat`."""


def hashed_tenant(tenant: str) -> str:
    """Return what stands for a tenant: the same in all servers, and no name."""
    return sha256(f"prolepsis tenant {tenant}".encode()).hexdigest()[:16]


def of_request(ended: RequestEnded, kept: Kept) -> Attributes:
    """Return the attributes of an HTTP request, and of its prompt if it has only one."""
    about, prompts, assignment = ended.about, ended.prompts, ended.about.assignment
    found: Found = {
        names.OPERATION: OPERATIONS.get(about.route, "chat"),
        names.PROVIDER: "prolepsis",
        names.HTTP_METHOD: "POST",
        names.HTTP_ROUTE: about.route,
        names.REQUEST_MODEL: about.model,
        names.REQUEST_STREAM: about.stream,
        names.RESPONSE_ID: about.answer_id,
        names.RESPONSE_MODEL: about.model,
        names.RESPONSE_FINISH_REASONS: [reason for prompt in prompts for reason in prompt.finish_reasons],
        names.USAGE_INPUT: sum(prompt.stats.num_prompt_tokens for prompt in prompts),
        names.USAGE_CACHED: sum(prompt.stats.num_cached_tokens for prompt in prompts),
        names.USAGE_OUTPUT: sum(prompt.stats.num_output_tokens for prompt in prompts),
        names.END: ended.end,
        names.ERROR_TYPE: ended.error or (ended.end if is_error(ended.end) else None),
        names.KEPT: kept,
        names.TENANT: hashed_tenant(about.tenant) if about.tenant else None,
        names.TIER: about.tier or None,
        names.POLICY_RULE: about.policy_rule,
        names.POLICY_VERSION: about.policy_version,
        names.ROLLOUT_RUN: assignment.rollout_run if assignment else None,
        names.ROLLOUT_ARM: assignment.arm if assignment else None,
    }
    if prompts:
        found |= _of_sampling(prompts[0])
    if len(prompts) == 1:
        return {**given(found), **of_prompt(prompts[0]), **of_stages(prompts[0], ended)}
    return given(found)


def of_stages(prompt: PromptEnded, ended: RequestEnded) -> Attributes:
    """Return the wall time of a prompt by stage (seconds), which adds up to the time of its request."""
    stages = stages_of(prompt, ended.about.arrived, ended.ended_at).by_stage()
    return {_STAGES[stage]: round(seconds, 6) for stage, seconds in stages.items()}


def _of_sampling(prompt: PromptEnded) -> Found:
    request = prompt.request
    params = request.params
    return {
        names.OUTPUT_TYPE: "json" if request.grammar is not None and request.grammar.kind == "json_schema" else "text",
        names.REQUEST_MAX_TOKENS: params.max_tokens,
        names.REQUEST_TEMPERATURE: params.temperature,
        names.REQUEST_TOP_P: params.top_p,
        names.REQUEST_TOP_K: params.top_k or None,
        names.REQUEST_FREQUENCY_PENALTY: params.frequency_penalty or None,
        names.REQUEST_PRESENCE_PENALTY: params.presence_penalty or None,
        names.REQUEST_SEED: params.seed,
        names.REQUEST_CHOICES: request.n if request.n > 1 else None,
    }


def of_prompt(prompt: PromptEnded) -> dict[str, Attribute]:
    stats = prompt.stats
    found: Found = {
        names.REQUEST_ID: prompt.request.request_id,
        names.TRAFFIC_CLASS: prompt.request.traffic_class or None,
        names.ANSWER: prompt.answer,
        names.MODE_REQUESTED: prompt.request.speculation.mode,
        names.ADMISSION_WAIT: prompt.waited_s,
    }
    if prompt.answer != "unreported":
        found |= {
            names.MODE: stats.mode.mode,
            names.MODE_REASON: stats.mode.reason,
            names.PLAN_VERSION: stats.mode.plan_version,
            names.FALLBACK: fallback_reasons(prompt) or None,
            names.PREEMPTIONS: stats.num_preemptions,
        }
    if prompt.answer in ("complete", "cut"):
        found |= _latencies(stats)
    return given(found)


def _latencies(stats: RequestStats) -> Found:
    first = stats.first_token_s
    return {
        names.LATENCY_QUEUE: stats.queue_s,
        names.LATENCY_PREFILL: stats.prefill_s if first is not None else None,
        names.LATENCY_DECODE: stats.total_s - first if first is not None else None,
        names.LATENCY_INFERENCE: stats.compute_s,
        names.LATENCY_FIRST: first,
        names.LATENCY_TOTAL: stats.total_s,
    }


def of_prefill(stats: RequestStats) -> Attributes:
    return {names.USAGE_INPUT: stats.num_prompt_tokens, names.USAGE_CACHED: stats.num_cached_tokens}


def of_decode(stats: RequestStats) -> Attributes:
    plain = sorted(stats.plain_steps.items())
    found: Found = {
        names.USAGE_OUTPUT: stats.num_output_tokens,
        names.PASSES: stats.num_steps,
        names.ROUNDS: stats.num_drafts,
        names.DRAFTED: stats.num_draft_tokens,
        names.ACCEPTED: stats.num_accepted,
        names.PLAIN_REASONS: [reason for reason, _ in plain] or None,
        names.PLAIN_STEPS: [number for _, number in plain] or None,
    }
    return given(found)


def of_round(one: Round, proposal: str) -> Attributes:
    found: Found = {
        names.PROPOSAL_ID: proposal,
        names.PROPOSER: one.proposer,
        names.PROPOSER_VERSION: one.version or None,
        names.SAMPLE: one.sample,
        names.NODES: one.num_nodes,
        names.DRAFTED: one.num_draft_tokens,
        names.ACCEPTED: one.num_accepted,
        names.EMITTED: one.num_emitted,
        names.OUTCOME: one.outcome,
        names.PROPOSE_S: one.propose_s,
        names.FORWARD_S: one.forward_s,
        names.VERIFY_S: one.verify_s,
    }
    return given(found)


def of_later_rounds(stats: RequestStats) -> Attributes:
    """Return the sums over the rounds that are not kept."""
    return {
        names.ROUNDS: stats.num_drafts - len(stats.rounds),
        names.DRAFTED: stats.num_draft_tokens - sum(one.num_draft_tokens for one in stats.rounds),
        names.ACCEPTED: stats.num_accepted - sum(one.num_accepted for one in stats.rounds),
    }


def of_replay(request_id: str, replayed: Replayed) -> Attributes:
    return {
        names.REQUEST_ID: request_id,
        names.REPLAY_OUTCOME: replayed.outcome,
        names.REPLAY_POSITION: min(one.position for one in replayed.differences.values()),
        names.ERROR_TYPE: "mismatch",
    }


def of_http(method: str, route: str, status: int, kept: Kept) -> Attributes:
    found: Found = {
        names.HTTP_METHOD: method,
        names.HTTP_ROUTE: route,
        names.HTTP_STATUS: status,
        names.ERROR_TYPE: str(status) if status >= 500 else None,
        names.KEPT: kept,
    }
    return given(found)


def given(found: Found) -> dict[str, Attribute]:
    """Return what there is."""
    return {name: value for name, value in found.items() if value is not None}
