"""Reads bodies and queries of requests into checked values; the one error of a bad one names the field."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeVar, get_args

from fastapi import Depends
from jiter import from_json
from pydantic import ValidationError
from starlette.requests import Request

from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.intake import INLINE_BYTES, Intake
from prolepsis.core.validation import Path, first_problem, shown_path, shown_value, suggestion

BODY_BYTES = "body_bytes"
"""Where the size of a request's body stands in its scope's state."""

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
    "reasoning": ({}, {"effort": "none"}, {"effort": "none", "summary": "auto"}),
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


_MANY_FIELDS = 128
"""More than any body has."""

B = TypeVar("B", bound=Body)


class Reader:
    """A dependency of a route that reads something of the request; `openapi` is what it adds to the document."""

    openapi: dict[str, Any]
    most_bytes: int | None = None
    """Largest body, where it is not that of all routes."""


class BodyReader(Reader):
    """Reads the body up to the largest size, and parses it in its tenant's turn; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        self.openapi = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    async def __call__(self, request: Request) -> Body:
        intake: Intake = request.app.state.intake
        tenant = caller_of(request).tenant
        async with intake.uploads.read(request, tenant) as raw:
            request.scope["state"][BODY_BYTES] = len(raw)
            await intake.round_robin.turn(tenant)
            parse = partial(self.parse, raw, intake.uploads.most_members)
            return await intake.large_work.run(tenant, len(raw), parse, gives_way=False)

    def parse(self, raw: bytes, most_members: int) -> Body:
        """Parse a body with at most this many fields, lists and objects, and twice as many commas; raises
        `RequestRefused`.
        """
        if len(raw) > INLINE_BYTES:
            members, commas = size_of(raw)
            for given, allowed, what in (
                (members, most_members, "fields, lists and objects"),
                (commas, 2 * most_members, "commas between values"),
            ):
                if given > allowed:
                    message = f"The request body has {given} {what}; allowed: {allowed}."
                    raise RequestRefused(message, code="too_many_fields")
        return parse_body(raw, self.kind)


class QueryReader(Reader):
    """Reads the query, in which every value is a text; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schemas = kind.model_json_schema()["properties"]
        fields = [{"name": name, "in": "query", "required": False, "schema": schemas[name]} for name in schemas]
        self.openapi = {"parameters": fields}

    async def __call__(self, request: Request) -> Body:
        query = dict(request.query_params)
        given = [name for name, _ in request.query_params.multi_items()]
        if len(given) > len(query):
            name = next(name for name in query if given.count(name) > 1)
            message = f"The query has '{name[:64]}' {given.count(name)} times; allowed: once."
            raise RequestRefused(message, code="invalid_value", param=name[:64])
        return parse_texts(query, self.kind)


def read_body(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's body."""
    return Depends(BodyReader(kind))


def read_query(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's query."""
    return Depends(QueryReader(kind))


def parse_texts(values: Mapping[str, str], kind: type[B]) -> B:
    """Parse the values of a query or a form into `kind`; raises `RequestRefused`."""
    try:
        return kind.model_validate(values, strict=False)
    except ValidationError as error:
        raise _refusal(error, kind, values) from None


def size_of(raw: bytes) -> tuple[int, int]:
    """Return how many fields, lists and objects a JSON document has, and how many commas between values.

    They are what reading it takes time for; counting takes a fraction of that. A document that is no JSON gives some
    numbers.
    """
    without_escapes = raw.replace(rb"\\", b"").replace(rb"\"", b"")
    without_texts = b"".join(without_escapes.split(b'"')[::2])
    return sum(map(without_texts.count, (b":", b"[", b"{"))), without_texts.count(b",")


def parse_body(raw: bytes, kind: type[B]) -> B:
    """Parse UTF-8 JSON into `kind`; raises `RequestRefused`."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        message = f"The request body is not valid UTF-8: byte {error.start} is 0x{raw[error.start]:02x}."
        raise RequestRefused(message, code="invalid_utf8") from None
    try:
        value = from_json(raw, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        reason = str(error)  # which may quote a key
        raise RequestRefused(f"The request body is not valid JSON: {reason[:200]}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestRefused("The request body must be a JSON object.", code="invalid_type")
    try:
        return kind.model_validate(_without_neutral(value, kind, ()))
    except ValidationError as error:
        raise _refusal(error, kind, value) from None


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


def _without_neutral(value: dict[str, object], kind: type[Body], path: Path) -> dict[str, object]:
    """Drop fields that are not served but ask for nothing, here and in the nested objects.

    Of an object with very many fields the first unknown one is refused here, as pydantic would describe them all.
    """
    kept: dict[str, object] = {}
    names, nested = _names(kind), nested_bodies(kind)
    if len(value) > _MANY_FIELDS:
        unknown = next(name for name in value if name not in names)
        raise _unknown_field(unknown, shown_path((*path, unknown)), sorted(names))
    for name, item in value.items():
        if name not in names and name in NEUTRAL_VALUES and _neutral(item, NEUTRAL_VALUES[name]):
            continue
        kept[name] = _nested_without_neutral(item, nested[name], (*path, name)) if name in nested else item
    return kept


def _nested_without_neutral(item: object, kind: type[Body], path: Path) -> object:
    if isinstance(item, list):
        return [_nested_without_neutral(part, kind, (*path, i)) for i, part in enumerate(item)]
    return _without_neutral(item, kind, path) if isinstance(item, dict) else item


def _neutral(item: object, allowed: Sequence[object]) -> bool:
    if isinstance(item, dict):
        item = {name: value for name, value in item.items() if value is not None}
    return item is None or any(type(item) is type(value) and item == value for value in allowed)


def _refusal(error: ValidationError, kind: type[Body], document: object) -> RequestRefused:
    problem = first_problem(error, kind, document)
    param = problem.where
    if problem.kind == "unknown":
        return _unknown_field(str(problem.path[-1]), param, problem.names)
    if problem.kind == "missing":
        return RequestRefused(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    what = f"Invalid value for '{param}'" if param else "Invalid request"
    message = f"{what}: {problem.reason}; given: {shown_value(problem.given)}."
    return RequestRefused(message, code=f"invalid_{problem.kind}", param=param or None)


def _unknown_field(name: str, param: str, names: Sequence[str]) -> RequestRefused:
    if name not in NEUTRAL_VALUES:
        hint = suggestion(name, names, most_names=len(names))
        return RequestRefused(f"Unknown parameter: '{param}'; {hint}", code="unknown_parameter", param=param)
    asks_nothing = ", ".join(map(shown_value, NEUTRAL_VALUES[name]))
    allowed = f"; allowed: {asks_nothing} or null" if asks_nothing else ""
    message = f"Unsupported parameter: '{param}' is not supported by this server{allowed}."
    return RequestRefused(message, code="unsupported_parameter", param=param)
