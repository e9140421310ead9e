"""Reads bodies and queries of requests into checked values; the one error of a bad one names the field."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Literal, TypeVar, get_args, get_origin

from fastapi import Depends
from jiter import from_json
from pydantic import ValidationError
from starlette.datastructures import ImmutableMultiDict
from starlette.requests import Request

from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body, ClientBody, Holds, NoEffect, Served
from prolepsis.control.web.foreign_fields import FOREIGN_FIELDS, UNKNOWN, Ignored, replacement
from prolepsis.control.web.intake import INLINE_BYTES, Intake
from prolepsis.control.web.reply_headers import warn
from prolepsis.core.json_size import size_of
from prolepsis.core.stored_text import UNSTORABLE
from prolepsis.core.validation import Path, first_problem, shown_path, shown_value, suggestion

BODY_BYTES = "body_bytes"  # where the size of a request's body stands in its scope's state

NAMES = frozenset(
    {"model", "metadata", "user", "safety_identifier", "request_id", "previous_response_id"}
    | {"prompt_cache_key", "cache_salt"}
)
"""Fields of a `ClientBody` that are kept, or looked for, as they are. Its other texts are for the model, and may have
any character."""

B = TypeVar("B", bound=Body)


class Reader:
    """A dependency of a route that reads something of the request; `openapi` is what it adds to the document."""

    openapi: dict[str, Any]
    most_bytes: int | None = None  # largest body, where it is not that of all routes


class BodyReader(Reader):
    """Reads the body up to the largest size, and parses it in its tenant's turn; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schema = {"$ref": f"#/components/schemas/{kind.__name__}"}
        self.openapi = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}

    async def __call__(self, request: Request) -> Body:
        return await self.read(request, request.app.state.intake)

    async def read(self, request: Request, intake: Intake) -> Body:
        tenant = caller_of(request).tenant
        async with intake.uploads.read(request, tenant) as raw:
            request.scope["state"][BODY_BYTES] = len(raw)
            await intake.round_robin.turn(tenant)
            ignored = None if intake.strict_parameters else Ignored()
            parse = partial(parse_body, raw, self.kind, ignored, most_members=intake.uploads.most_members)
            body = await intake.large_work.run(tenant, len(raw), parse, gives_way=False)
            if ignored:
                warn(request, str(ignored))
            return body


class QueryReader(Reader):
    """Reads the query, in which every value is a text; raises `RequestRefused`."""

    def __init__(self, kind: type[Body]) -> None:
        self.kind = kind
        schemas = kind.model_json_schema()["properties"]
        fields = [{"name": name, "in": "query", "required": False, "schema": schemas[name]} for name in schemas]
        self.openapi = {"parameters": fields}

    async def __call__(self, request: Request) -> Body:
        return parse_texts(request.query_params, self.kind, "query")


@cache
def read_body(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's body."""
    return Depends(BodyReader(kind))


@cache
def read_query(kind: type[Body]) -> Any:
    """Return the annotation of a route's parameter that is the request's query."""
    return Depends(QueryReader(kind))


def parse_texts(given: ImmutableMultiDict[str, Any], kind: type[B], what: Literal["query", "form"]) -> B:
    """Parse the values of a query or a form into `kind`; raises `RequestRefused`."""
    values, names = dict(given), [name for name, _ in given.multi_items()]
    if len(names) > len(values):
        name = next(name for name in values if names.count(name) > 1)
        message = f"The {what} has '{name[:64]}' {names.count(name)} times; allowed: once."
        raise RequestRefused(message, code="invalid_value", param=name[:64])
    for name, value in values.items():
        _check_storable(name, name, getattr(value, "filename", value))
    try:
        return kind.model_validate(values, strict=False)
    except ValidationError as error:
        raise _refusal(error, kind, values) from None


def _check_size(raw: bytes, most_members: float) -> None:
    members, commas = size_of(raw) if len(raw) > INLINE_BYTES else (0, 0)
    for given, allowed, what in (
        (members, most_members, "fields, lists and objects"),
        (commas, 2 * most_members, "commas between values"),
    ):
        if given > allowed:
            message = f"The request body has {given} {what}; allowed: {allowed}."
            raise RequestRefused(message, code="too_many_fields")


def parse_body(raw: bytes, kind: type[B], ignored: Ignored | None = None, *, most_members: float = math.inf) -> B:
    """Parse UTF-8 JSON with at most this many fields, lists and objects, and twice as many commas, into `kind`.

    `ignored` gets the fields of a `ClientBody` that are dropped although they ask for something; they are refused
    where it is None, and in any other body. Raises `RequestRefused`.
    """
    _check_size(raw, most_members)
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
    if rb"\u0000" in raw:
        for name, item in value.items():
            is_kept = name in NAMES if issubclass(kind, ClientBody) else name != "body"  # a batch's line holds a body
            _check_storable(name[:64], name, item if is_kept else None)
    served = _served(value, kind, (), ignored if issubclass(kind, ClientBody) else None)
    try:
        return kind.model_validate(served)
    except ValidationError as error:
        raise _refusal(error, kind, served) from None


def _check_storable(param: str, *values: object) -> None:
    """Raise `RequestRefused` for a text that databases do not hold."""
    for value in values:
        if isinstance(value, str) and UNSTORABLE.search(value):
            what = f"{value[:64]!r} has U+0000 or half a surrogate pair; allowed: neither"
            raise RequestRefused(f"Invalid value for {param!r}: {what}.", code="invalid_value", param=param)
        if isinstance(value, dict):
            _check_storable(param, *value, *value.values())
        if isinstance(value, list):
            _check_storable(param, *value)


@dataclass(frozen=True, slots=True)
class _Field:
    """What the annotation of a body's field says."""

    bodies: tuple[type[Body], ...]  # models of the objects that it holds, alone or in a list
    served: frozenset[str] | None
    is_optional: bool
    has_effect: bool


@cache
def _fields(kind: type[Body]) -> Mapping[str, _Field]:
    fields = {}
    for name, info in kind.model_fields.items():
        leaves = [leaf for part in (info.annotation, *info.metadata) for leaf in _leaves(part)]
        bodies = tuple(leaf for leaf in leaves if isinstance(leaf, type) and issubclass(leaf, Body))
        served = next((frozenset(leaf.names) for leaf in leaves if isinstance(leaf, Served)), None)
        has_effect = not any(isinstance(leaf, NoEffect) for leaf in leaves)
        fields[info.alias or name] = _Field(bodies, served, not info.is_required(), has_effect)
    return fields


def _leaves(annotation: object) -> Iterator[object]:
    """Yield the types and marks of which an annotation consists; keys of a mapping are no fields."""
    if isinstance(annotation, Holds):
        yield annotation.body
    if get_origin(annotation) is not dict:
        parts = get_args(annotation)
        yield from (leaf for part in parts for leaf in _leaves(part)) if parts else (annotation,)


def _served(value: dict[str, object], kind: type[Body], path: Path, ignored: Ignored | None) -> dict[str, object]:
    """Drop what is not served and cannot change the answer, here and in nested objects; raises `RequestRefused`."""
    kept: dict[str, object] = {}
    renamed: dict[str, dict[str, object]] = {}
    fields = _fields(kind)
    for name, item in value.items():
        field, place = fields.get(name), (*path, name)
        foreign = FOREIGN_FIELDS.get(name, UNKNOWN)
        if field is None and foreign.read_as and foreign.read_as[0] in fields and not foreign.is_neutral(item):
            own, inner = foreign.read_as
            renamed.setdefault(own, {})[inner] = item
        elif field is None:
            _drop(name, item, place, fields, ignored)
        elif item is not None or not field.is_optional:
            if ignored is not None and not field.has_effect:
                ignored.add(place)
            if isinstance(item, list) or _is_served(item, field, place, ignored):
                kept[name] = _served_inside(item, field, place, ignored)
    for name, forms in renamed.items():
        given = kept.setdefault(name, {})
        kept[name] = {**forms, **given} if isinstance(given, dict) else given
    return kept


def _served_inside(item: object, field: _Field, path: Path, ignored: Ignored | None) -> object:
    if isinstance(item, list) and (field.bodies or field.served):
        return [
            _served_inside(part, field, (*path, i), ignored)
            for i, part in enumerate(item)
            if _is_served(part, field, path, ignored)
        ]
    if not isinstance(item, dict) or not field.bodies:
        return item
    kinds = (kind for kind in field.bodies if item.get("type") in _types(kind))
    return _served(item, next(kinds, field.bodies[0]), path, ignored)


def _is_served(item: object, field: _Field, path: Path, ignored: Ignored | None) -> bool:
    name = item.get("type") if isinstance(item, dict) else item
    if ignored is None or field.served is None or not isinstance(name, str) or name in field.served:
        return True
    ignored.add((*path, f"[{name}]"))
    return False


@cache
def _types(kind: type[Body]) -> tuple[object, ...]:
    """Return the types by which a model is known among others."""
    field = kind.model_fields.get("type")
    return get_args(field.annotation) if field is not None else ()


def _drop(name: str, item: object, path: Path, known: Iterable[str], ignored: Ignored | None) -> None:
    """Drop a field that its place lacks; raises `RequestRefused` where it asks for something that cannot be dropped."""
    foreign = FOREIGN_FIELDS.get(name, UNKNOWN)
    if foreign.is_neutral(item) and (foreign is not UNKNOWN or ignored is not None):
        return
    if foreign.changes_answer or ignored is None:
        raise _unknown_field(name, shown_path(path), sorted(known))
    ignored.add(path, known)


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
    if name not in FOREIGN_FIELDS:
        hint = suggestion(name, names, most_names=len(names))
        return RequestRefused(f"Unknown parameter: '{param}'; {hint}", code="unknown_parameter", param=param)
    neutral, use = FOREIGN_FIELDS[name].asks_nothing, replacement(name, names)
    allowed = f"; allowed: {', '.join(map(shown_value, neutral))} or null" if neutral else ""
    advice = f"; use '{use}'" if use else ""
    message = f"Unsupported parameter: '{param}' is not supported by this server{allowed}{advice}."
    return RequestRefused(message, code="unsupported_parameter", param=param)
