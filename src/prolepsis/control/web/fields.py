"""Types of body fields: what JSON may hold, how it is shown in the OpenAPI document, how it is read."""

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from prolepsis.core.facts import TAGS
from prolepsis.core.requests import MAX_LOGIT_BIASES, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from prolepsis.core.validation import Number, Part

MAX_SAMPLES = 128
MAX_PROMPTS = 64
MAX_LOGPROB_TOKENS = 128
MAX_ALLOWED_TOKENS = MAX_LOGIT_BIASES


class Body(Part):
    """A strict JSON object: a field that is not declared is refused, never ignored."""


class ClientBody(Body):
    """A body that programs made for other servers send too: what cannot change the answer is dropped and named."""


@dataclass(frozen=True, slots=True)
class Served:
    """In an annotation: texts, or types of objects, that are served; others are dropped and named, also in a list."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Holds:
    """In the annotation of a value that is made of objects: their model."""

    body: type[Body]


@dataclass(frozen=True, slots=True)
class NoEffect:
    """In the annotation of a field of a `ClientBody`: it is accepted, and named as one that changes nothing."""


_PartType = Literal["text", "input_text", "output_text", "reasoning_text", "summary_text", "refusal"]


class TextPart(Body):
    """An item of a content list."""

    type: _PartType
    text: str | None = None
    refusal: str | None = None
    annotations: object = None
    logprobs: object = None


class Reply(BaseModel):
    """A JSON object as it goes out, for replies that are not a value of the domain."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


JsonObject: TypeAlias = dict[str, object]


def _join_parts(content: object) -> object:
    """Join the parts of a content list; anything else is left to the string check."""
    if not isinstance(content, list):
        return content
    texts = [_text_of(part) for part in content]
    if None in texts:
        raise ValueError('content parts must be {"type": "text", "text": string}')
    return "".join(text for text in texts if text is not None)


def _text_of(part: object) -> str | None:
    """Return the text of a part, which may be a plain text too; None: it holds none."""
    if isinstance(part, dict):
        kind = part.get("type")
        part = part.get("refusal" if kind == "refusal" else "text") if kind in get_args(_PartType) else None
    return part if isinstance(part, str) else None


def _with_tags(metadata: object) -> object:
    """Read a list of tags as the text that names them with commas."""
    match metadata:
        case {"tags": [*tags], **others} if all(isinstance(tag, str) for tag in tags):
            return {**others, TAGS: ",".join(tags)}
    return metadata


def _whole(value: object) -> object:
    """Read 8.0 as the whole number that it is."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _none_for_minus_one(value: object) -> object:
    return None if value == -1 else value


def _list_of_one(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _prompts(value: object) -> object:
    """Read one prompt or several, each a string or a list of token ids, as a list of prompts."""
    if isinstance(value, str) or _are_tokens(value):
        return [value]
    if isinstance(value, list) and all(isinstance(item, str) or _are_tokens(item) for item in value):
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"{len(value)} prompts given; allowed: at most {MAX_PROMPTS} a request")
        return value
    raise ValueError("must be a string, a list of token ids, or a list of these")


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _token_keys(value: object) -> object:
    """JSON keys are strings: read them as token ids. An empty list is what llama.cpp calls no bias."""
    if not isinstance(value, dict):
        return {} if value == [] else value
    if len(value) > MAX_LOGIT_BIASES:
        raise ValueError(f"has {len(value)} tokens; allowed: at most {MAX_LOGIT_BIASES}")
    wrong = next((key for key in value if not (key.isascii() and key.isdigit() and len(key) <= 10)), None)
    if wrong is not None:
        raise ValueError(f"key {wrong[:64]!r} is not a token id")
    return {int(key): bias for key, bias in value.items()}


_STRING = {"type": "string"}
_STOP_STRING = {**_STRING, "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_WHOLE = BeforeValidator(_whole)

ModelName: TypeAlias = Annotated[
    str, BeforeValidator(lambda name: "" if name is None else name, json_schema_input_type=str | None)
]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1), _WHOLE]
MaxTokens: TypeAlias = Annotated[
    Annotated[int, Field(ge=1, le=2**31 - 1), _WHOLE] | None, BeforeValidator(_none_for_minus_one)
]
"""-1 is no limit of its own, as None is."""
MaxTokensOrNone: TypeAlias = Annotated[Count | None, BeforeValidator(_none_for_minus_one)]
"""0: nothing is generated."""
PromptTokens: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1), _WHOLE]
Samples: TypeAlias = Annotated[int, Field(ge=1, le=MAX_SAMPLES), _WHOLE]
Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), le=2**63 - 1), _WHOLE]
Priority: TypeAlias = Annotated[int, Field(ge=-(2**31), le=2**31 - 1), _WHOLE]
TopK: TypeAlias = Annotated[int, Field(ge=-1, le=2**31 - 1), _WHOLE]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=-1, le=MAX_TOP_LOGPROBS), _WHOLE]
"""-1: all tokens of the vocabulary."""
Token: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]  # a short printable name
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
FunctionName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_./-]{1,64}$")]
QualifiedName: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_./-]{1,64}(\.[a-zA-Z0-9_./-]{1,64})?$")]
"""A function's name, behind that of its namespace where it has one."""
Schema: TypeAlias = dict[str, object]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    BeforeValidator(_with_tags),
]
"""Texts by name; `tags` may be a list of texts, as LiteLLM has it."""
Text: TypeAlias = Annotated[
    str,
    Holds(TextPart),
    BeforeValidator(_join_parts),
    WithJsonSchema({"anyOf": [_STRING, {"type": "array", "items": TextPart.model_json_schema()}]}),
]
"""A text, or a list of text parts."""
Stop: TypeAlias = Annotated[
    list[Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_list_of_one),
    WithJsonSchema({"anyOf": [_STOP_STRING, {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS}]}),
]
LogitBias: TypeAlias = Annotated[
    dict[int, Number],
    BeforeValidator(_token_keys),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": "^[0-9]{1,10}$"},
            "maxProperties": MAX_LOGIT_BIASES,
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
        }
    ),
]
Prompts: TypeAlias = Annotated[
    list[str | list[int]],
    Field(min_length=1),
    BeforeValidator(_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                _STRING,
                _TOKENS,
                {"type": "array", "items": {"anyOf": [_STRING, _TOKENS]}, "minItems": 1, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]
