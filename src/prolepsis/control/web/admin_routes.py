"""Calls declared admin routes in this process: the handler, roles, body and audit entry are those of HTTP."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter
from starlette.datastructures import ImmutableMultiDict
from starlette.responses import Response

from prolepsis.control.web.body_reader import BodyReader, QueryReader, parse_body, parse_texts
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.fields import Body
from prolepsis.control.web.refusals import wrong_role
from prolepsis.control.web.routes import Route
from prolepsis.core.terminal.resource import Act

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section(Generic[T]):
    """A part of a page: what a route returned, or why it did not."""

    value: T | None
    problem: str = ""
    hidden: bool = False
    """The caller's roles do not include it."""


class AdminRoutes:
    """The declared routes of the features, called by method and path pattern."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = {(method, route.path): route for route in routes for method in route.methods or ()}

    def route(self, method: str, path: str) -> Route:
        return self._routes[method, path]

    def allows(self, caller: Caller, method: str, path: str) -> bool:
        """Return whether the caller's roles include the route."""
        roles = self.route(method, path).roles
        return roles is None or any(caller.has(role) for role in roles)

    async def read(
        self, caller: Caller, kind: type[T], path: str, query: Mapping[str, object] | None = None, **names: str
    ) -> T:
        """Return what GET `path` replies, a `kind`; raises what the route raises, and `Refused` for another role."""
        return await self._call(caller, kind, self._checked(caller, "GET", path), names, query or {})

    async def section(
        self, caller: Caller, kind: type[T], path: str, query: Mapping[str, object] | None = None, **names: str
    ) -> Section[T]:
        """Return the same as a part of a page, so that a part without its data leaves the others in place."""
        if not self.allows(caller, "GET", path):
            return Section(None, hidden=True)
        try:
            return Section(await self.read(caller, kind, path, query, **names))
        except Exception as error:  # contained: the part says what is wrong; what is unexpected is logged
            return Section(None, problem=str(describe_error(error)))

    async def ask(self, caller: Caller, kind: type[T], path: str, body: Mapping[str, object]) -> T:
        """Return what POST `path` replies to a body of JSON values; for routes that answer and change nothing."""
        return await self._call(caller, kind, self._checked(caller, "POST", path), {}, body)

    async def document(self, caller: Caller, path: str) -> Section[Any]:
        """Return what GET `path` replies as JSON, as a part of a page."""
        found = await self.section(caller, object, path)
        if found.value is None:
            return Section(None, found.problem, found.hidden)
        return Section(_adapter(self.route("GET", path).response_model).dump_python(found.value, mode="json"))

    async def act(self, caller: Caller, act: Act, fields: Mapping[str, str]) -> object:
        """Call a route that changes something; `fields` are those of a form, read as the route's body declares them."""
        route = self._checked(caller, act.method, act.path)
        names = {name: fields.get(name, "") for name in re.findall(r"{(\w+)}", act.path)}
        given = typed(fields, route.taken[0]) if route.taken else {}
        return await self._call(caller, object, route, names, given)

    def _checked(self, caller: Caller, method: str, path: str) -> Route:
        route = self.route(method, path)
        if route.roles is not None and not self.allows(caller, method, path):
            raise wrong_role(caller.roles, route.roles)
        return route

    async def _call(
        self, caller: Caller, kind: type[T], route: Route, names: Mapping[str, str], body: Mapping[str, object]
    ) -> T:
        given: dict[str, object] = dict(names)
        for part in route.dependant.dependencies:
            assert part.name is not None, "dependencies of our routes are parameters"
            given[part.name] = _given(part.call, body, caller)
        reply = await route.endpoint(**given)
        if isinstance(reply, Response):
            return TypeAdapter(kind).validate_json(bytes(reply.body))
        assert isinstance(reply, kind), f"{route.path} replies with {kind}"
        return reply


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
