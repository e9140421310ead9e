"""The OpenAPI document holds against the server: requests made from it meet no 5xx, no undocumented status or shape."""

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from prolepsis.control.web.fields import Reply
from prolepsis.control.web.routes import Route
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.dialects.anthropic.routes import MessagesReply
from prolepsis.server.dialects.llamacpp.routes import LlamaCppReply
from prolepsis.server.dialects.ollama.routes import OllamaReply
from prolepsis.server.known import VERIFY_ROUTES
from prolepsis.server.openai import replies
from tests.server.application import build
from tests.server.conftest import Served, served
from tests.server.fakes import ByteTokenizer, FakeEngine

FOREIGN = ("/v1/messages/{rest}", "/api/{rest}")
NOT_DESCRIBED = {"GET /openapi.json", "GET /", "GET /docs"} | {
    f"{method} {path}" for method in ("GET", "POST", "DELETE") for path in FOREIGN
}
"""Not served, the document itself, and what leads to the console."""
APP = build(ServerConfig(), FakeEngine(), ByteTokenizer(), Metrics())
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


def described() -> dict[str, Any]:
    """Return the document, with the one model that is served, so that requests get beyond its name."""
    document: Any = deepcopy(APP.openapi())
    for body in document["components"]["schemas"].values():
        if "model" in body.get("properties", {}) and body.get("title", "").endswith("Body"):
            body["properties"]["model"] = {"const": "tiny"}
    return dict(document)


def test_every_route_is_described() -> None:
    paths: Any = APP.openapi()["paths"]
    found = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    declared = [route for route in APP.routes if isinstance(route, Route) and not route.path.startswith("/console")]
    routes = {f"{method} {route.path_format}" for route in declared for method in route.methods or ()}
    assert routes - NOT_DESCRIBED == found


async def test_the_document_is_served(served_here: Served) -> None:
    async with httpx2.AsyncClient(base_url=served_here.url, timeout=60) as http:
        assert (await http.get("/openapi.json")).json() == json.loads(json.dumps(APP.openapi()))


@pytest.fixture(scope="module")
def served_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with a kill switch and breakers of its own: requests from the document turn them."""
    folder = tmp_path_factory.mktemp("killed")
    config = ServerConfig(max_body_bytes=65536, controls_file=folder / "controls.json")
    with served(FakeEngine(text="ok"), config) as running:
        yield running


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections are kept: a new one for each request takes as long as the request."""
    with requests.Session() as made:
        made.trust_env = False  # no search for proxies and passwords before each request
        yield made


def schema_under(**coverage: object) -> BaseSchema:
    """Return the document under settings of the phase that goes through each field of each body."""
    config = schemathesis.Config.from_dict({"phases": {"coverage": coverage}})
    return schemathesis.openapi.from_dict(described(), config=config)


AT_NIGHT = settings().max_examples > 25
"""Each field of each body takes thousands of requests: by day a few random ones go to all routes."""
schema = schema_under(**{"enabled": AT_NIGHT, "unexpected-methods": ["OPTIONS", "QUERY"]})  # one router refuses others
reads = schema.include(method="GET")
writes = schema.exclude(method="GET").exclude(path=list(VERIFY_ROUTES))
same_bodies = schema_under(enabled=False).include(path=list(VERIFY_ROUTES))
"""Read by the classes of `/v1/chat/completions` and `/v1/completions`, whose fields `writes` goes through."""


def examples(number: int) -> settings:
    number = number if AT_NIGHT else number // 2
    return settings(max_examples=number, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@writes.parametrize()
@examples(20)
def test_requests_made_from_the_document(
    case: schemathesis.Case[Any], served_here: Served, session: requests.Session
) -> None:
    case.call_and_validate(base_url=served_here.url, session=session, checks=CHECKS)


@same_bodies.parametrize()
@examples(20)
def test_requests_whose_clients_draft(
    case: schemathesis.Case[Any], served_here: Served, session: requests.Session
) -> None:
    case.call_and_validate(base_url=served_here.url, session=session, checks=CHECKS)


@reads.parametrize()
@examples(8)
def test_reads_made_from_the_document(
    case: schemathesis.Case[Any], served_here: Served, session: requests.Session
) -> None:
    case.call_and_validate(base_url=served_here.url, session=session, checks=CHECKS)


FULL: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Hi"}],
    "logprobs": True,
    "top_logprobs": 2,
    "prediction": {"type": "content", "content": "ok"},
    "return_token_ids": True,
    "speculation": {"metrics": True},
}
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("text", "route", "body", "reply"),
    [
        ("ok", "/v1/chat/completions", FULL, replies.ChatCompletion),
        (
            '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
            "/v1/chat/completions",
            {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]},
            replies.ChatCompletion,
        ),
        ("ok", "/v1/completions", {"model": "tiny", "prompt": "Hi", "logprobs": 2}, replies.Completion),
        (
            "ok",
            "/v1/responses",
            {"model": "tiny", "input": "Hi", "speculation": {"metrics": True}},
            replies.ResponseReply,
        ),
        ("ok", "/v1/messages", {"model": "tiny", "max_tokens": 9, "messages": FULL["messages"]}, MessagesReply),
        ("ok", "/api/chat", {"model": "tiny", "messages": FULL["messages"], "stream": False}, OllamaReply),
        ("ok", "/api/generate", {"model": "tiny", "prompt": "Hi", "stream": False, "logprobs": True}, OllamaReply),
        ("ok", "/completion", {"prompt": "Hi", "n_probs": 1}, LlamaCppReply),
    ],
)
def test_full_replies_have_the_described_shape(text: str, route: str, body: dict[str, Any], reply: type[Reply]) -> None:
    with served(FakeEngine(text=text)) as running:
        response = httpx2.post(running.url + route, json=body)
    assert response.status_code == 200, response.text
    reply.model_validate_json(response.content)
