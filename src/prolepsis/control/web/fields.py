"""Types of body fields: what JSON may hold, how it is shown in the OpenAPI document, how it is read."""

from typing import Annotated, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from prolepsis.core.requests import MAX_LOGIT_BIASES, MAX_STOP_CHARACTERS, MAX_STOP_STRINGS, MAX_TOP_LOGPROBS
from prolepsis.core.validation import Number, Part

MAX_SAMPLES = 128
MAX_PROMPTS = 64
_TEXT_PARTS = ("text", "input_text", "output_text", "reasoning_text")
_PART_FIELDS = {"type", "text", "annotations", "logprobs"}


class Body(Part):
    """A strict JSON object: a field that is not declared is refused, never ignored."""


class Reply(BaseModel):
    """A JSON object as it goes out, for replies that are not a value of the domain."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())


JsonObject: TypeAlias = dict[str, object]


def _join_parts(content: object) -> object:
    """Join the text parts of a content list; anything else is left to the string check."""
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
            raise ValueError('content parts must be {"type": "text", "text": string}')
        if unknown := sorted(part.keys() - _PART_FIELDS):
            raise ValueError(f"unknown field {unknown[0][:64]!r} in a content part; allowed: type, text")
        texts.append(part["text"])
    return "".join(texts)


def _list_of_one(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _prompts(value: object) -> object:
    """Read one prompt or several, each a string or a list of token ids, as a list of prompts."""
    if isinstance(value, str) or _are_tokens(value):
        return [value]
    if isinstance(value, list) and all(isinstance(one, str) or _are_tokens(one) for one in value):
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"{len(value)} prompts given; allowed: at most {MAX_PROMPTS} a request")
        return value
    raise ValueError("must be a string, a list of token ids, or a list of these")


def _are_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(token) is int for token in value)


def _token_keys(value: object) -> object:
    """JSON keys are strings: read them as token ids."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LOGIT_BIASES:
        raise ValueError(f"has {len(value)} tokens; allowed: at most {MAX_LOGIT_BIASES}")
    wrong = next((key for key in value if not (key.isascii() and key.isdigit() and len(key) <= 10)), None)
    if wrong is not None:
        raise ValueError(f"key {wrong[:64]!r} is not a token id")
    return {int(key): bias for key, bias in value.items()}


_STRING = {"type": "string"}
_STOP_STRING = {**_STRING, "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
_TOKENS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PART = {
    "type": "object",
    "properties": {"type": {"enum": list(_TEXT_PARTS)}, "text": _STRING, "annotations": {}, "logprobs": {}},
    "required": ["type", "text"],
    "additionalProperties": False,
}

Count: TypeAlias = Annotated[int, Field(ge=0, le=2**31 - 1)]
MaxTokens: TypeAlias = Annotated[int, Field(ge=1, le=2**31 - 1)]
Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Priority: TypeAlias = Annotated[int, Field(ge=-(2**31), le=2**31 - 1)]
TopLogprobs: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]
Token: TypeAlias = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]
"""A short printable name."""
Name: TypeAlias = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
Schema: TypeAlias = dict[str, object]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]
Text: TypeAlias = Annotated[
    str, BeforeValidator(_join_parts), WithJsonSchema({"anyOf": [_STRING, {"type": "array", "items": _PART}]})
]
Stop: TypeAlias = Annotated[
    list[Annotated[str, Field(max_length=MAX_STOP_CHARACTERS)]],
    Field(max_length=MAX_STOP_STRINGS),
    BeforeValidator(_list_of_one),
    WithJsonSchema(
        {
            "anyOf": [
                _STOP_STRING,
                {"type": "array", "items": _STOP_STRING, "maxItems": MAX_STOP_STRINGS},
            ]
        }
    ),
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
