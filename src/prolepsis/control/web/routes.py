"""Declares each HTTP route once: path, roles, body, reply and errors. Sign-in and the OpenAPI document read this."""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from fastapi import FastAPI
from fastapi.datastructures import Default
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute
from starlette.types import StatelessLifespan

from prolepsis import __version__
from prolepsis.control.web.body_reader import BodyReader, QueryReader, Reader
from prolepsis.control.web.caller import ROLES, Role
from prolepsis.control.web.errors import OPENAI_ERRORS, ErrorShape, install_error_handlers

Roles = frozenset[Role]  # any of these roles may use a route; `admin` has every role

PUBLIC: None = None  # in place of roles: a route that needs no key
OPEN: Roles = frozenset()
"""In place of roles: a route that needs no key, and says more to the caller of one (`Known`)."""
ANY_ROLE: Roles = frozenset(ROLES)
CLIENTS: Roles = frozenset({"client"})
WATCHERS: Roles = frozenset({"viewer", "operator"})
READERS: Roles = frozenset({"viewer", "operator", "auditor"})
AUDITORS: Roles = frozenset({"auditor"})
OPERATORS: Roles = frozenset({"operator"})
ADMINS: Roles = frozenset({"admin"})
FINDERS: Roles = OPERATORS | AUDITORS

_STATUSES = {
    400: "A parameter is wrong, unknown or not supported; `param` names it",
    401: "The key is missing or not known",
    403: "The key's role does not allow this; `param` names the parameter that needs another role",
    404: "No such route or model",
    405: "The route has other methods",
    408: "The body did not arrive in time",
    409: "The present state does not allow this",
    413: "The body is larger than allowed",
    415: "The body's encoding is not served",
    429: "Over a limit of the key or the tenant; Retry-After says when to try again",
    431: "The headers are larger than allowed",
    500: "The server failed; the error is logged",
    502: "An upstream engine said what its API does not",
    503: "Not ready, overloaded or shutting down; Retry-After says when to try again",
    504: "The request's deadline passed",
}
_ALWAYS = (400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 503)
"""Statuses that every route may reply with."""
_REF = "#/components/schemas/"
EventType = Literal["text/event-stream", "application/x-ndjson", "application/gzip"]
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""One server-sent event; `data` is the JSON of a chunk, or [DONE]."""
_STREAMS: Mapping[EventType, Mapping[str, Any]] = {"text/event-stream": _EVENT}
_TEXT = {"text/plain": {"schema": {"type": "string"}}}

Endpoint = TypeVar("Endpoint", bound=Callable[..., Awaitable[object]])


class Route(APIRoute):
    def __init__(
        self,
        path: str,
        endpoint: Callable[..., Any],
        roles: Roles | None,
        options: dict[str, Any],
        errors: ErrorShape = OPENAI_ERRORS,
    ) -> None:
        """`options`: what FastAPI's own route takes."""
        super().__init__(path, endpoint, **options)
        self.roles = roles
        self.error_shape = errors
        self.most_bytes: int | None = None
        """Largest body, where it is not that of all routes."""
        calls: list[object] = [dependency.call for dependency in self.dependant.dependencies]
        readers = [call for call in calls if isinstance(call, Reader)]
        self.bodies = [reader.kind for reader in readers if isinstance(reader, BodyReader)]
        self.taken = [reader.kind for reader in readers if isinstance(reader, BodyReader | QueryReader)]
        """Bodies and queries."""
        for reader in readers:
            self.openapi_extra = {**(self.openapi_extra or {}), **reader.openapi}
            self.most_bytes = reader.most_bytes or self.most_bytes


class Routes:
    """The routes of one feature, in the order in which they are matched."""

    def __init__(self, errors: ErrorShape = OPENAI_ERRORS) -> None:
        self.all: list[Route] = []
        self._errors = errors
        self.get = partial(self._declare, "GET")
        self.put = partial(self._declare, "PUT")
        self.post = partial(self._declare, "POST")
        self.delete = partial(self._declare, "DELETE")

    def _declare(
        self,
        method: Literal["GET", "PUT", "POST", "DELETE"],
        path: str,
        *,
        summary: str,
        roles: Roles | None,
        reply: Any = None,
        errors: Sequence[int] = (),
        may_fail: bool = False,
        streams: EventType | None = None,
        headers: Mapping[str, Any] | None = None,
        documented: bool = True,
    ) -> Callable[[Endpoint], Endpoint]:
        """Return the decorator of the endpoint.

        `reply`: the model of the reply, for an endpoint that makes its own `Response`; default: what the endpoint is
        annotated to return. `str` stands for plain text. `errors`: statuses besides those of every route. `may_fail`:
        a 503 may have the shape of the reply. `streams`: type of the stream that the reply may be. `headers`: those
        that the endpoint reads, with their schemas.
        """

        def declare(endpoint: Endpoint) -> Endpoint:
            shape = reply or endpoint.__annotations__["return"]
            error = {"application/json": {"schema": {"$ref": f"{_REF}{self._errors.name}"}}}
            responses: dict[int | str, Any] = {
                status: {"description": _STATUSES[status], "content": error} for status in (*_ALWAYS, *errors)
            }
            responses[400]["content"] = {**error, **_TEXT}  # plain text is the answer to a request that is not HTTP
            if may_fail:
                either = [{"$ref": _REF + kind.__name__} for kind in get_args(shape) or (shape,)]
                either.append({"$ref": f"{_REF}{self._errors.name}"})
                responses[503]["content"] = {"application/json": {"schema": {"anyOf": either}}}
            if streams is not None:
                responses[200] = {"content": {streams: {"schema": _STREAMS.get(streams, {})}}}
            options = {
                "methods": [method],
                "summary": summary,
                "response_description": "Done",
                "response_model": None if reply is str else Default(None) if reply is None else reply,
                "response_class": PlainTextResponse if reply is str else Default(JSONResponse),
                "responses": responses,
                "openapi_extra": {
                    "security": _security(roles),
                    "parameters": [
                        {"name": name, "in": "header", "required": False, "schema": schema}
                        for name, schema in (headers or {}).items()
                    ],
                },
                "include_in_schema": documented,
                "operation_id": "_".join((method.lower(), *re.findall("[A-Za-z0-9]+", path))),
            }
            self.all.append(Route(path, endpoint, roles, options, self._errors))
            return endpoint

        return declare


def shown(path: str, roles: Roles, summary: str, read: Callable[[], object]) -> Sequence[Route]:
    """Return the route of what `read` returns, or what it makes to wait for, as its annotation says."""
    routes = Routes()

    async def endpoint() -> object:
        made = read()
        return await made if isawaitable(made) else made

    routes.get(path, roles=roles, summary=summary, reply=get_type_hints(read)["return"])(endpoint)
    return routes.all


def _security(roles: Roles | None) -> list[dict[str, list[str]]]:
    if roles is None:
        return []
    return [{"key": sorted(roles)}] if roles else [{}, {"key": []}]


class Application(FastAPI):
    """Serves declared routes; `openapi` makes the document from them."""

    def __init__(
        self, routes: Iterable[Route], lifespan: StatelessLifespan["Application"], on_error: Callable[[Exception], None]
    ) -> None:
        """`on_error` sees every exception that becomes a reply."""
        super().__init__(
            title="Prolepsis",
            version=__version__,
            routes=list(routes),
            lifespan=lifespan,
            openapi_url=None,
            redirect_slashes=False,
        )
        install_error_handlers(self, on_error)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, version 3.1."""
        if self.openapi_schema is None:
            self.openapi_schema = _document(self.routes)
        return self.openapi_schema


def _document(routes: Sequence[BaseRoute]) -> dict[str, Any]:
    document = get_openapi(title="Prolepsis", version=__version__, routes=routes)
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["responses"].pop("422", None)  # bodies and queries are checked by our own readers: 400
    bodies = {body for route in routes if isinstance(route, Route) for body in route.bodies}
    _, definitions = models_json_schema(
        [(body, "validation") for body in sorted(bodies, key=lambda body: body.__name__)],
        by_alias=True,
        ref_template=_REF + "{model}",
    )
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    shapes = {route.error_shape.name: route.error_shape.schema for route in routes if isinstance(route, Route)}
    schemas |= {**definitions.get("$defs", {}), **shapes}
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"key": []}]
    return document
