"""Calls declared admin routes in this process: the handler, roles, body and audit entry are those of HTTP."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from prolepsis.control.web.body_reader import BodyReader, QueryReader, parse_body, parse_texts
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.fields import Body
from prolepsis.control.web.refusals import wrong_role
from prolepsis.control.web.routes import Route

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section(Generic[T]):
    """A part of a page: what a route returned, or why it did not."""

    value: T | None
    problem: str = ""
    hidden: bool = False  # the caller's roles do not include it


async def call(
    caller: Caller, kind: type[T], route: Route, names: Mapping[str, str], values: Mapping[str, object]
) -> T:
    """Return what a route replies, a `kind`, to a query or body; raises what it raises, and `Refused` by its roles."""
    if not allows(caller, route):
        assert route.roles is not None, "a route without roles allows everyone"
        raise wrong_role(caller.roles, route.roles)
    given: dict[str, object] = dict(names)
    for part in route.dependant.dependencies:
        assert part.name is not None, "dependencies of our routes are parameters"
        given[part.name] = _given(part.call, values, caller)
    reply = await route.endpoint(**given)
    if isinstance(reply, Response):
        return TypeAdapter(kind).validate_json(bytes(reply.body))
    assert isinstance(reply, kind), f"{route.path} replies with {kind}"
    return reply


def allows(caller: Caller, route: Route) -> bool:
    """Return whether the caller's roles include the route."""
    return route.roles is None or any(caller.has(role) for role in route.roles)


def as_json(route: Route, value: object) -> Any:
    return _adapter(route.response_model).dump_python(value, mode="json")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _given(reader: object, values: Mapping[str, object], caller: Caller) -> object:
    """Return a parameter of a handler: its body, its query, or the caller."""
    if isinstance(reader, BodyReader):
        return parse_body(json.dumps(values).encode(), reader.kind)
    return parse_texts(ImmutableMultiDict(values), reader.kind, "query") if isinstance(reader, QueryReader) else caller


def typed(fields: Mapping[str, str], kind: type[Body]) -> dict[str, object]:
    """Return the fields of a form that `kind` declares, as JSON values; raises `RequestRefused`."""
    known = kind.model_fields
    return {name: _value(name, text, known[name].annotation) for name, text in fields.items() if name in known}


def _value(name: str, text: str, annotation: object) -> object:
    if annotation in (bool, bool | None):
        return text == "true"
    if annotation is int:
        if not text.strip().isdecimal():
            message = f"{name} is {text[:64]!r}; allowed: a whole number"
            raise RequestRefused(message, code="invalid_value", param=name)
        return int(text)
    return text
