"""Request bodies of the generation endpoints; a field that is not here is refused, never ignored."""

from typing import Annotated, Literal

from pydantic import Field

from prolepsis.server.fields import (
    MAX_SAMPLES,
    Body,
    Count,
    LogitBias,
    Metadata,
    Number,
    Priority,
    Prompts,
    Seed,
    SpecMode,
    Stop,
    Text,
    Token,
    TopLogprobs,
)
from prolepsis.server.format_bodies import ResponseFormat, StructuredOutputs
from prolepsis.server.messages import Message
from prolepsis.server.tool_bodies import ToolChoice, Tools


class StreamOptions(Body):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """Every chunk carries the usage so far."""


class SpeculationBody(Body):
    """Prolepsis' own field: what this request asks of speculation. Output is the same whatever it says."""

    mode: SpecMode | None = None
    """auto: where it pays; off; on: wherever there is a draft; shadow: draft and compare, verify nothing."""
    max_depth: Count | None = None
    """Ceiling on drafted tokens a step."""
    proposer: str | None = None
    """The only proposer that may draft."""
    emit: Literal["block", "token"] = "block"
    """token: each token leaves in its own chunk, evenly paced, so that chunks do not show what was accepted."""
    metrics: bool = False
    """Add `metrics` with acceptance figures and the mode in effect to the response."""


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: Text


class SharedBody(Body):
    """What every generation endpoint takes; None means not given."""

    model: str
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: LogitBias | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    stop_token_ids: Annotated[list[Count], Field(max_length=128)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    priority: Priority | None = None
    request_id: Token | None = None
    """Becomes part of the response's id."""
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Prefixes and drafts are shared only among requests of one tenant with the same salt."""
    speculation: SpeculationBody | None = None
    metadata: Metadata | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    """These four are accepted for clients that send them; they have no effect on generation."""


class GenerationBody(SharedBody):
    """What chat and text completions share."""

    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    max_tokens: Count | None = None
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    prediction: Prediction | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    """Variables for the model's chat template, such as enable_thinking."""


class CompletionBody(GenerationBody):
    prompt: Prompts
    logprobs: TopLogprobs | None = None
