"""Reads bodies and queries of requests into checked values; the one error of a bad one names the field."""

import difflib
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, get_args

from fastapi import Depends
from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from prolepsis.web.errors import RequestRefused
from prolepsis.web.fields import Body
from prolepsis.web.refusals import too_large

NEUTRAL_VALUES: dict[str, tuple[object, ...]] = {
    "access_programs": (),
    "annotations": ([],),
    "audio": (),
    "background": (False,),
    "best_of": (1,),
    "context_management": ([],),
    "conversation": (),
    "echo": (False,),
    "encrypted_content": (),
    "function_call": ("none",),
    "functions": ([],),
    "image": (),
    "include_obfuscation": (False,),
    "logprobs": (False,),
    "max_completion_tokens": (),
    "max_tokens": (),
    "max_tool_calls": (),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "namespace": (),
    "parallel_tool_calls": (True, False),
    "phase": (),
    "prediction": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_options": ({},),
    "prompt_cache_retention": ("in_memory",),
    "reasoning": ({},),
    "reasoning_effort": ("none",),
    "refusal": (),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "structural_tag": (),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "truncation": ("disabled",),
    "verbosity": ("medium",),
    "web_search_options": (),
}
"""Fields of the OpenAI API and its usual extensions that an endpoint may lack, with the values that ask for nothing.

Such a value, or null, is accepted as if the field were absent; any other value is refused by name.
"""


B = TypeVar("B", bound=Body)

_TYPE_ERRORS = ("_type", "_parsing", "_unicode")


class Reader:
    """A dependency of a route that reads something of the request; `openapi` is what it adds to the document."""

    openapi: dict[str, Any]


class BodyReader(Reader):
    """Reads the body, byte by byte up to the configured size; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        self.openapi = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    async def __call__(self, request: Request) -> Body:
        raw = await _read_bytes(request, request.app.state.max_body_bytes)
        return parse_body(raw, self.kind)


class QueryReader(Reader):
    """Reads the query, in which every value is a text; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schemas = kind.model_json_schema()["properties"]
        fields = [{"name": name, "in": "query", "required": False, "schema": schemas[name]} for name in schemas]
        self.openapi = {"parameters": fields}

    async def __call__(self, request: Request) -> Body:
        try:
            return self.kind.model_validate(dict(request.query_params), strict=False)
        except ValidationError as error:
            raise _refusal(error.errors(include_url=False, include_context=True), self.kind) from None


def read_body(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's body."""
    return Depends(BodyReader(kind))


def read_query(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's query."""
    return Depends(QueryReader(kind))


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            raise too_large("body", f"{max_bytes} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def parse_body(raw: bytes, kind: type[B]) -> B:
    """Parse UTF-8 JSON into `kind`; raises `RequestRefused`."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        message = f"The request body is not valid UTF-8: byte {error.start} is 0x{raw[error.start]:02x}."
        raise RequestRefused(message, code="invalid_utf8") from None
    try:
        value = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestRefused(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestRefused("The request body must be a JSON object.", code="invalid_type")
    try:
        return kind.model_validate(_without_neutral(value, kind))
    except ValidationError as error:
        raise _refusal(error.errors(include_url=False, include_context=True), kind) from None


@cache
def nested_bodies(kind: type[Body]) -> dict[str, type[Body]]:
    """Return the model behind each field of `kind` that holds an object, or a list of objects."""
    found = {}
    for name, info in kind.model_fields.items():
        inner = _body_in(info.annotation)
        if inner is not None:
            found[info.alias or name] = inner
    return found


def _body_in(annotation: object) -> type[Body] | None:
    if isinstance(annotation, type) and issubclass(annotation, Body):
        return annotation
    return next((body for part in get_args(annotation) if (body := _body_in(part)) is not None), None)


@cache
def _names(kind: type[Body]) -> frozenset[str]:
    return frozenset(info.alias or name for name, info in kind.model_fields.items())


def _without_neutral(value: dict[str, object], kind: type[Body]) -> dict[str, object]:
    """Drop fields that are not served but ask for nothing, here and in the nested objects."""
    kept: dict[str, object] = {}
    names, nested = _names(kind), nested_bodies(kind)
    for name, item in value.items():
        if name not in names and name in NEUTRAL_VALUES and _neutral(item, NEUTRAL_VALUES[name]):
            continue
        kept[name] = _nested_without_neutral(item, nested[name]) if name in nested else item
    return kept


def _nested_without_neutral(item: object, kind: type[Body]) -> object:
    if isinstance(item, list):
        return [_nested_without_neutral(part, kind) for part in item]
    return _without_neutral(item, kind) if isinstance(item, dict) else item


def _neutral(item: object, allowed: Sequence[object]) -> bool:
    return item is None or any(type(item) is type(value) and item == value for value in allowed)


def _refusal(errors: Sequence[ErrorDetails], kind: type[Body]) -> RequestRefused:
    """Report unknown fields first: a misspelt name also shows as a missing one."""
    first = next((error for error in errors if error["type"] == "extra_forbidden"), errors[0])
    location, model = _location(kind, first)
    param = _path(location)
    if first["type"] == "extra_forbidden":
        return _unknown_field(str(location[-1]), param, model)
    if first["type"] == "missing":
        return RequestRefused(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    code = "invalid_type" if first["type"].endswith(_TYPE_ERRORS) else "invalid_value"
    what = f"Invalid value for '{param}'" if param else "Invalid request"
    return RequestRefused(f"{what}: {message}; given: {_shown(first['input'])}.", code=code, param=param or None)


def _unknown_field(name: str, param: str, model: type[Body]) -> RequestRefused:
    if name in NEUTRAL_VALUES:
        asks_nothing = ", ".join(_shown(value) for value in NEUTRAL_VALUES[name])
        allowed = f"; allowed: {asks_nothing} or null" if asks_nothing else ""
        message = f"Unsupported parameter: '{param}' is not supported by this server{allowed}."
        return RequestRefused(message, code="unsupported_parameter", param=param)
    names = _names(model)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else f"; allowed: {', '.join(sorted(names))}."
    return RequestRefused(f"Unknown parameter: '{param}'{hint}", code="unknown_parameter", param=param)


def _location(kind: type[Body], error: ErrorDetails) -> tuple[list[int | str], type[Body]]:
    """Return where `error` is, without pydantic's names of unions and validators, and the object it is in."""
    outer, final = error["loc"][:-1], error["loc"][-1:]
    kept: list[int | str] = [part for part in outer if not _is_inner_name(part)]
    for part in kept:
        kind = nested_bodies(kind).get(part, kind) if isinstance(part, str) else kind
    kept += [part for part in final if error["type"] == "extra_forbidden" or not _is_inner_name(part)]
    return kept, kind


def _is_inner_name(part: int | str) -> bool:
    return isinstance(part, str) and (part in ("str", "int", "bool", "float") or "[" in part)


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f"{'.' if path else ''}{part[:64]}"
    return path


def _shown(value: object) -> str:
    """A short description of what was given, without its text where it is long."""
    if isinstance(value, dict | list):
        if not value:
            return "{}" if isinstance(value, dict) else "[]"
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
    return text if len(text) <= 64 else f"{text[:60]}..."
