"""Request bodies of the generation endpoints; a field that is not here is refused, never ignored."""

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from prolepsis.core.sampling_params import MAX_TOP_LOGPROBS

MAX_STOP_STRINGS = 16
MAX_SAMPLES = 128
_INT64 = 2**63 - 1

Number: TypeAlias = Annotated[float, Field(allow_inf_nan=False)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]


def _join_parts(content: object) -> object:
    """Join the text parts of a content list; anything else goes on to the string check."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ValueError('content parts must be {"type": "text", "text": string}')
        if unknown := sorted(part.keys() - {"type", "text"}):
            raise ValueError(f"unknown field {unknown[0][:64]!r} in a content part; allowed: type, text")
        texts.append(part["text"])
    return "".join(texts)


def _list_of_one(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_prompt(value: object) -> object:
    """Unwrap a list that holds one prompt; several prompts in one request are refused."""
    if isinstance(value, list) and value and isinstance(value[0], str | list):
        if len(value) > 1:
            raise ValueError(f"{len(value)} prompts given; allowed: one prompt a request")
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise ValueError("must be a string, a list of token ids, or a list with one of these")


def _token_keys(value: object) -> object:
    """JSON keys are strings: read them as token ids."""
    if not isinstance(value, dict):
        return value
    wrong = next((key for key in value if not (key.isascii() and key.isdigit() and len(key) <= 10)), None)
    if wrong is not None:
        raise ValueError(f"key {wrong[:64]!r} is not a token id")
    return {int(key): bias for key, bias in value.items()}


Text: TypeAlias = Annotated[str, BeforeValidator(_join_parts)]
Stop: TypeAlias = Annotated[list[str], Field(max_length=MAX_STOP_STRINGS), BeforeValidator(_list_of_one)]
LogitBias: TypeAlias = Annotated[dict[int, Number], BeforeValidator(_token_keys)]


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class StreamOptions(Body):
    include_usage: bool | None = None


class SpeculationBody(Body):
    """Prolepsis' own field: what this request asks of speculation. Output is the same whatever it says."""

    mode: Literal["auto", "off"] = "auto"
    max_depth: Count | None = None
    """Ceiling on drafted tokens a step."""
    proposer: str | None = None
    """The only proposer that may draft."""
    metrics: bool = False
    """Add `metrics` with acceptance figures and the mode in effect to the response."""


class Prediction(Body):
    """OpenAI's predicted output."""

    type: Literal["content"]
    content: Text


class Message(Body):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class GenerationBody(Body):
    """What both endpoints share; None means not given."""

    model: str
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Annotated[int, Field(ge=-1, le=2**31 - 1)] | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    logit_bias: LogitBias | None = None
    n: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None
    seed: Annotated[int, Field(ge=0, le=_INT64)] | None = None
    stop: Stop | None = None
    stop_token_ids: list[Count] | None = None
    max_tokens: Count | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    priority: Annotated[int, Field(ge=-(2**31), le=2**31 - 1)] | None = None
    speculation: SpeculationBody | None = None
    user: str | None = None
    """Accepted for clients that always send it; it has no effect on generation."""


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    prediction: Prediction | None = None


class CompletionBody(GenerationBody):
    prompt: Annotated[str | list[int], BeforeValidator(_one_prompt)]
    logprobs: TopLogprobs | None = None


NESTED: dict[str, type[Body]] = {
    "stream_options": StreamOptions,
    "speculation": SpeculationBody,
    "prediction": Prediction,
    "messages": Message,
}
"""The model behind each nested field."""

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_obfuscation": (False,),
    "annotations": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "name": (),
    "parallel_tool_calls": (False,),
    "prompt_cache_key": (),
    "reasoning_effort": ("none",),
    "refusal": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": (),
    "service_tier": ("auto", "default"),
    "skip_special_tokens": (True,),
    "store": (False,),
    "structured_outputs": (),
    "suffix": ("",),
    "tool_call_id": (),
    "tool_calls": ([],),
    "tool_choice": ("none",),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of the OpenAI API (and of its usual extensions) that are not served, with the values that ask for nothing.

Such a value, or null, is accepted as if the field were absent; any other value is refused by name.
"""
