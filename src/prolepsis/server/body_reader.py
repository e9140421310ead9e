"""From the bytes of a request to a checked body, or to one error that names the field and what is allowed."""

import difflib
from collections.abc import Sequence
from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json
from starlette.requests import Request

from prolepsis.server.bodies import NESTED, NEUTRAL_VALUES, Body
from prolepsis.server.errors import RequestRefused

B = TypeVar("B", bound=Body)

_TYPE_ERRORS = ("_type", "_parsing", "_unicode")


async def read_body(request: Request, kind: type[B], max_bytes: int) -> B:
    """Read and check the body of `request`; raises `RequestRefused`."""
    return parse_body(await _read_bytes(request, max_bytes), kind)


async def _read_bytes(request: Request, max_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > max_bytes:
            message = f"The request body is larger than {max_bytes} bytes, the largest allowed."
            raise RequestRefused(message, code="request_too_large", status=413)
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


def _without_neutral(value: dict[str, object], kind: type[Body]) -> dict[str, object]:
    """Drop fields that are not served but ask for nothing, here and in the nested objects."""
    kept: dict[str, object] = {}
    for name, item in value.items():
        if name not in kind.model_fields and name in NEUTRAL_VALUES and _neutral(item, NEUTRAL_VALUES[name]):
            continue
        kept[name] = _nested_without_neutral(item, NESTED[name]) if name in NESTED else item
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
    location = [part for part in first["loc"] if part != "[key]"]
    param = _path(location)
    if first["type"] == "extra_forbidden":
        return _unknown_field(str(location[-1]), param, _model_at(kind, location))
    if first["type"] == "missing":
        return RequestRefused(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
    code = "invalid_type" if first["type"].endswith(_TYPE_ERRORS) else "invalid_value"
    text = f"Invalid value for '{param}': {message}; given: {_shown(first['input'])}."
    return RequestRefused(text, code=code, param=param)


def _unknown_field(name: str, param: str, model: type[Body]) -> RequestRefused:
    if name in NEUTRAL_VALUES:
        message = f"Unsupported parameter: '{param}' is not supported by this server."
        return RequestRefused(message, code="unsupported_parameter", param=param)
    close = difflib.get_close_matches(name, model.model_fields, n=1)
    hint = f"; did you mean '{close[0]}'?" if close else f"; allowed: {', '.join(sorted(model.model_fields))}."
    return RequestRefused(f"Unknown parameter: '{param}'{hint}", code="unknown_parameter", param=param)


def _model_at(kind: type[Body], location: Sequence[int | str]) -> type[Body]:
    for part in location[:-1]:
        kind = NESTED.get(str(part), kind)
    return kind


def _path(location: Sequence[int | str]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f"{'.' if path else ''}{part[:64]}"
    return path


def _shown(value: object) -> str:
    """A short description of what was given, without its text where it is long."""
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = str(value).lower() if isinstance(value, bool) else "null" if value is None else repr(value)
    return text if len(text) <= 64 else f"{text[:60]}..."
