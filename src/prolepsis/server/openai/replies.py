"""Shapes of models and of answers to generation requests, for the OpenAPI document; answers are built elsewhere."""

from typing import Literal, TypeAlias

from prolepsis.control.web.fields import JsonObject, Reply
from prolepsis.core.facts import FlagDecision
from prolepsis.core.reasons import LimitReason
from prolepsis.core.requests import AnswerPart, SamplingDefaults
from prolepsis.core.stats import PartResult, Quality


class Model(Reply):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    max_model_len: int
    default_sampling: SamplingDefaults  # values for sampling parameters that requests leave out


class ModelList(Reply):
    object: Literal["list"]
    data: list[Model]


class PromptDetails(Reply):
    cached_tokens: int


class CompletionDetails(Reply):
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None
    reasoning_tokens: int | None = None


class UsageBody(Reply):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None


class ProposerFigures(Reply):
    """What one proposer brought; of a merged draft each position counts for one."""

    num_accepted_draft_tokens: int
    num_draft_tokens: int


class SpecDecodeFigures(Reply):
    """Acceptance, in vLLM's names."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_histogram: list[int]
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    proposers: dict[str, ProposerFigures]  # by name


class Effective(Reply):
    mode: Literal["on", "off", "shadow"]
    reason: str
    plan_version: int
    policy_rule: str | None = None
    """The rule that matched, `default` where none did; there where the server has a policy."""
    policy_version: str | None = None
    rollout: str | None = None  # the rollout of that rule, where it has one
    arm: Literal["canary", "unassigned", "holdout"] | None = None
    limits: list[LimitReason] | None = None  # limits that earlier drafts put on the terms, if any
    policy_flags: list[FlagDecision] | None = None  # those that rules of the policy ask, there where they do
    flag: FlagDecision | None = None  # there where the server asks flags


class DraftDelivery(Reply):
    """Draft tokens accepted by verification, delivered to the client, and lost by reason."""

    num_verified_draft_tokens: int
    num_delivered_draft_tokens: int
    lost: dict[Literal["ended", "stop_string", "policy", "left"], int]


class StagesMs(Reply):
    """They add up to the time from the request's arrival to the engine's end."""

    receive: float
    queue: float
    prefill: float  # its share of passes over its prompt
    decode: float  # its share of the other passes
    others: float  # waiting for the work of others in the engine


class MetricsReply(Reply):
    """Times (ms) and acceptance of one answer, and the mode that was in effect."""

    time_to_first_token_ms: float | None
    generation_time_ms: float | None
    queue_time_ms: float | None  # for admission, and in the engine until a pass has a row of the request
    stages_ms: StagesMs | None
    """Wall time by stage until the engine had ended; null: several prompts, or a stored answer."""
    mean_itl_ms: float | None
    tokens_per_second: float | None
    speculative_decoding: SpecDecodeFigures
    shadow_speculative_decoding: SpecDecodeFigures | None = None  # figures of drafts that were only compared
    inside: dict[AnswerPart, dict[PartResult, int]] | None = None  # tokens by part of the answer (`inside` of a rule)
    correction_ms: float  # device time of making and verifying draft tokens that were rejected
    delivery: DraftDelivery | None  # none: the engine does not say which tokens were drafts
    quality: Quality  # what acceptance says of the answer beside others of its traffic class
    effective: Effective


class TokenLogprob(Reply):
    token: str
    logprob: float
    bytes: list[int]


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Reply):
    content: list[ContentLogprob]
    refusal: None


class CalledFunction(Reply):
    name: str
    arguments: str


class ToolCall(Reply):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatMessage(Reply):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None


class TextOrigin(Reply):
    """A piece of an answer, and whose draft it was; null: the target's own."""

    text: str
    drafted_by: str | None


class Choice(Reply):
    index: int
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    origins: list[TextOrigin] | None = None


class ChatChoice(Choice):
    message: ChatMessage
    logprobs: ChatLogprobs | None


class CompletionLogprobs(Reply):
    """Of an echoed prompt the first token has none: null."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(Reply):
    logprob: float
    rank: int  # place of the token among all, from 1
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]
"""By id, the token of the prompt and the likeliest in its place; null for the first."""


class CompletionChoice(Choice):
    text: str
    logprobs: CompletionLogprobs | None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Envelope(Reply):
    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: UsageBody
    seed: int  # drawn by the server unless the caller gave it; the header `x-seed` has it too
    metrics: MetricsReply | None = None
    prompt_token_ids: list[int] | None = None


class ChatCompletion(Envelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_logprobs: PromptLogprobs | None = None


class Completion(Envelope):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class InputDetails(Reply):
    cached_tokens: int
    cache_write_tokens: int


class OutputDetails(Reply):
    reasoning_tokens: int


class ResponseUsage(Reply):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


class ResponseReply(Reply):
    """A /v1/responses answer."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["completed", "incomplete", "queued", "in_progress", "failed", "cancelled"]
    background: bool
    model: str
    output: list[JsonObject]  # items of type message, reasoning and function_call, as OpenAI has them
    error: JsonObject | None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, None]
    store: bool
    temperature: float
    text: JsonObject
    tool_choice: str | JsonObject
    tools: list[JsonObject]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None
    seed: int
    metrics: MetricsReply | None = None


class InputTokens(Reply):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
