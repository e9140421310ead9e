"""The OpenAPI document: every route, what it takes, and every status it can give."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import get_args

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from prolepsis import __version__
from prolepsis.api import replies
from prolepsis.api.evidence import ContractReply, DriftReply, DriftResetBody, DriftStreamReply, ShadowReply
from prolepsis.api.openai.bodies import ChatBody, CompletionBody
from prolepsis.api.openai.responses_bodies import ResponsesBody
from prolepsis.api.openai.tokenization import DetokenizeBody, TokenizeBody
from prolepsis.api.openai.usage import Json
from prolepsis.audit.routes import AuditEntryReply, AuditQuery, AuditReplayReply, AuditReply
from prolepsis.correctness.routes import CorrectnessReply
from prolepsis.cost.routes import CostReply
from prolepsis.policy.routes import (
    PolicyBody,
    PolicyChangedReply,
    PolicyReply,
    PolicyRollbackBody,
    PolicyTextReply,
    PolicyVersionsReply,
)
from prolepsis.rollout.routes import (
    RolloutCommandBody,
    RolloutCommandName,
    RolloutHistoryReply,
    RolloutListReply,
    RolloutReply,
)
from prolepsis.safety.routes import BreakerBody, KillBody

STATUSES = {
    400: "A parameter is wrong, unknown or not supported; `param` names it",
    401: "No key, or none that is known",
    403: "The key's role does not allow this; `param` names a parameter that it does not",
    404: "No such route or model",
    405: "The route has other methods",
    409: "What is asked cannot be done in the state this is in",
    408: "The body did not arrive in time",
    413: "The body is larger than allowed",
    429: "Over a limit of the key or the tenant; Retry-After says when to come back",
    431: "The headers are larger than allowed",
    500: "The server failed; the error is logged",
    503: "Not ready, overloaded or shutting down; Retry-After says when to come back",
    504: "The request's deadline passed",
}
_ANY = (400, 401, 403, 404, 405, 408, 413, 429, 431, 500, 503)
_GENERATES = (*_ANY, 504)


@dataclass(frozen=True, slots=True)
class _Route:
    method: str
    path: str
    summary: str
    reply: type[BaseModel] | None
    """None: text in Prometheus' format."""
    body: type[BaseModel] | None = None
    streams: bool = False
    query: type[BaseModel] | None = None
    failing: type[BaseModel] | None = None
    """What a 503 of the route itself shows."""
    conflicts: bool = False
    """It may be that this cannot be done now (409)."""

    @property
    def statuses(self) -> Sequence[int]:
        if self.conflicts:
            return (*_GENERATES, 409)
        return _GENERATES if self.streams else _ANY


_ROUTES = (
    _Route("post", "/v1/chat/completions", "Continue a conversation", replies.ChatCompletion, ChatBody, streams=True),
    _Route("post", "/v1/completions", "Continue texts", replies.Completion, CompletionBody, streams=True),
    _Route("post", "/v1/responses", "Answer, statelessly", replies.Response, ResponsesBody, streams=True),
    _Route("get", "/v1/models", "Models served", replies.ModelList),
    _Route("get", "/v1/models/{name}", "One model", replies.Model),
    _Route("post", "/tokenize", "Text or conversation to tokens", replies.Tokenized, TokenizeBody),
    _Route("post", "/detokenize", "Tokens to text", replies.Detokenized, DetokenizeBody),
    _Route("get", "/health/live", "The process lives", replies.Live, failing=replies.Live),
    _Route("get", "/health", "The engine is ready", replies.Ready, failing=replies.Ready),
    _Route("get", "/health/ready", "The engine is ready", replies.Ready, failing=replies.Ready),
    _Route("get", "/health/deep", "The engine generates a token", replies.Deep, failing=replies.Deep),
    _Route("get", "/version", "Version of the server", replies.Version),
    _Route("get", "/metrics", "Metrics for Prometheus", None),
    _Route("get", "/admin/rollouts", "Rollouts of the policy in use", RolloutListReply),
    _Route("get", "/admin/rollouts/{rollout_id}", "One rollout and what happened to it", RolloutHistoryReply),
    _Route(
        "post",
        "/admin/rollouts/{rollout_id}/{command}",
        "Start, hold, resume, promote or roll back",
        RolloutReply,
        RolloutCommandBody,
        conflicts=True,
    ),
    _Route("get", "/admin/policy", "The policy in use", PolicyReply),
    _Route("put", "/admin/policy", "Another version in its place", PolicyChangedReply, PolicyBody, conflicts=True),
    _Route("get", "/admin/policy/versions", "Versions of the policy", PolicyVersionsReply, conflicts=True),
    _Route("get", "/admin/policy/versions/{version}", "One version with its text", PolicyTextReply, conflicts=True),
    _Route(
        "post",
        "/admin/policy/rollback",
        "An earlier version's text as a new version",
        PolicyChangedReply,
        PolicyRollbackBody,
        conflicts=True,
    ),
    _Route("get", "/admin/correctness", "Requests decoded again, and what differs", CorrectnessReply),
    _Route("get", "/admin/audit", "Entries of the audit log", AuditReply, query=AuditQuery),
    _Route("get", "/admin/audit/{entry}", "One entry, by its number or its request's id", AuditEntryReply),
    _Route(
        "post",
        "/admin/audit/{entry}/replay",
        "Decode a recorded request again, plainly",
        AuditReplayReply,
        conflicts=True,
    ),
    _Route("get", "/admin/cost", "What requests cost, what speculation saves, and a forecast", CostReply),
    _Route("get", "/admin/kill", "The kill switch, and who keeps it on", replies.Kill),
    _Route("put", "/admin/kill", "Turn the operator's kill switch", replies.KillTurned, KillBody),
    _Route("get", "/admin/breakers", "Breakers by proposer and traffic class", replies.Breakers),
    _Route("put", "/admin/breakers", "Set a breaker by hand", replies.BreakerSet, BreakerBody),
    _Route("get", "/admin/contract", "Accepted and delivered drafted tokens; output policies", ContractReply),
    _Route("get", "/admin/shadow", "What speculation would bring, from requests in shadow", ShadowReply),
    _Route("get", "/admin/drift", "Drift by proposer and traffic class", DriftReply),
    _Route("post", "/admin/drift/reset", "Watch one anew", DriftStreamReply, DriftResetBody, conflicts=True),
)

_PATH_VALUES: dict[str, Json] = {"command": {"enum": list(get_args(RolloutCommandName))}}
"""What parts of a path may be, where that is a fixed set."""

_EVENT: Json = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
}
"""One server-sent event; `data` is a chunk's JSON or [DONE]."""


_TEXT: Json = {"text/plain": {"schema": {"type": "string"}}}
"""Also what is answered to a request that is no valid HTTP."""


def openapi_routes() -> APIRouter:
    router = APIRouter()

    @router.get("/openapi.json", include_in_schema=False)
    async def openapi() -> JSONResponse:
        return JSONResponse(openapi_document())

    return router


@cache
def openapi_document() -> Json:
    """Return the document, version 3.1."""
    models = {model for route in _ROUTES for model in (route.reply, route.body, route.failing) if model}
    wanted = [(model, "validation") for model in sorted(models | {replies.ErrorReply}, key=lambda m: m.__name__)]
    _, definitions = models_json_schema(
        wanted,  # type: ignore[arg-type]  # a list of (model, mode)
        by_alias=True,
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Json] = {}
    for route in _ROUTES:
        paths.setdefault(route.path, {})[route.method] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Prolepsis", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}],
    }


def _operation(route: _Route) -> Json:
    responses: Json = {"200": {"description": "Done", "content": _contents(route)}}
    for status in route.statuses:
        responses[str(status)] = {"description": STATUSES[status], "content": _json(replies.ErrorReply)}
    responses["400"] = {"description": STATUSES[400], "content": {**_json(replies.ErrorReply), **_TEXT}}
    if route.failing is not None:
        either = [_schema(route.failing), _schema(replies.ErrorReply)]
        failed: Json = {"application/json": {"schema": {"anyOf": either}}}
        responses["503"] = {"description": STATUSES[503], "content": failed}
    operation: Json = {"summary": route.summary, "responses": responses}
    parameters: list[Json] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", **_PATH_VALUES.get(name, {})}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    if route.streams:
        schema = {"enum": ["auto", "off", "on", "shadow"]}
        parameters.append({"name": "X-Spec-Mode", "in": "header", "required": False, "schema": schema})
    if route.query is not None:
        schema = route.query.model_json_schema()["properties"]
        parameters += [{"name": name, "in": "query", "required": False, "schema": schema[name]} for name in schema]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(route.body)}
    return operation


def _contents(route: _Route) -> Json:
    if route.reply is None:
        return _TEXT
    content = _json(route.reply)
    if route.streams:
        content["text/event-stream"] = {"schema": _EVENT}
    return content


def _json(model: type[BaseModel]) -> Json:
    return {"application/json": {"schema": _schema(model)}}


def _schema(model: type[BaseModel]) -> Json:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
