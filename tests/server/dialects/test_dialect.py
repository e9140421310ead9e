"""All dialects take the path of all requests: keys, limits, policies, retries, warnings; errors have their shape."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from prolepsis.control.web.caller import DEVELOPER
from prolepsis.core.config import ServerConfig
from prolepsis.core.requests import SamplingDefaults
from prolepsis.server.dialects.anthropic.parse import MessagesBody, to_chat
from prolepsis.server.preparing.facts import request_facts
from prolepsis.server.preparing.limits import sampling_params
from prolepsis.server.preparing.prepared import RequestContext
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine
from tests.waiting import until

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/messages": {"model": "tiny", "max_tokens": 9, "messages": HI},
    "/api/chat": {"model": "tiny", "messages": HI, "options": {"num_predict": 9}, "stream": False},
    "/api/generate": {"model": "tiny", "prompt": "Hi", "options": {"num_predict": 9}, "stream": False},
    "/completion": {"model": "tiny", "prompt": "Hi", "n_predict": 9},
}
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    405: "invalid_request_error",
    400: "invalid_request_error",
}
every = pytest.mark.parametrize("path", BODIES)


def check_error(path: str, reply: httpx2.Response, status: int) -> str:
    """Check that an error has the dialect's shape, and return its message."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    if path == "/completion":  # errors are those of OpenAI's API
        assert set(error) == {"message", "type", "param", "code"}
        return str(error["message"])
    if path.startswith("/api"):
        assert reply.json() == {"error": error}
        return str(error)
    assert reply.json() == {"type": "error", "error": {"type": TYPES[status], "message": error["message"]}}
    return str(error["message"])


def post(running: Served, path: str, more: Mapping[str, object] | None = None, **headers: str) -> httpx2.Response:
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.post(running.url + path, json={**BODIES[path], **(more or {})}, headers=given, timeout=60)


@every
async def test_refusals_have_the_shape_of_the_dialect(path: str, keyed_app: KeyedApp) -> None:
    key, other, viewer = keyed_app.key(), keyed_app.key(models=("large",)), keyed_app.key("viewer")
    config = ServerConfig(requests_per_minute={"key": 1}, max_body_bytes=4096)
    async with keyed_app.open(FakeEngine(), config) as http:
        assert "API key" in check_error(path, await http.post(path, json=BODIES[path]), 401)
        assert "role" in check_error(path, await http.post(path, json=BODIES[path], headers=bearer(viewer)), 403)
        check_error(path, await http.post(path, json=BODIES[path], headers=bearer(other)), 403)
        unknown = await http.post(path, json={**BODIES[path], "model": "none"}, headers=bearer(key))
        assert "'none' does not exist" in check_error(path, unknown, 404)
        check_error(path, await http.post(f"{path}/x", json={}, headers=bearer(key)), 404)
        check_error(path, await http.put(path, json={}, headers=bearer(key)), 405)
        check_error(path, await http.post(path, content=b"x" * 5000, headers=bearer(key)), 413)
        check_error(path, await http.post(path, content=b"{", headers=bearer(key)), 400)
        assert (await http.post(path, json=BODIES[path], headers=bearer(key))).status_code == 200
        limited = await http.post(path, json=BODIES[path], headers=bearer(key))
        check_error(path, limited, 429)
        assert int(limited.headers["retry-after"]) > 0


@every
async def test_a_key_may_come_as_x_api_key(path: str, keyed_app: KeyedApp) -> None:
    key = keyed_app.key()
    async with keyed_app.open(FakeEngine()) as http:
        assert (await http.post(path, json=BODIES[path], headers={"x-api-key": key})).status_code == 200
        check_error(path, await http.post(path, json=BODIES[path], headers={"x-api-key": "wrong"}), 401)
        both = {**bearer(key), "x-api-key": "wrong"}
        assert (await http.post(path, json=BODIES[path], headers=both)).status_code == 200


def test_no_rule_of_a_policy_sees_the_key() -> None:
    context = RequestContext(DEVELOPER, "/v1/messages", {"x-api-key": "secret", "user-agent": "a"})
    body = to_chat(MessagesBody.model_validate(BODIES["/v1/messages"]))
    params = sampling_params(body, SamplingDefaults())
    facts = request_facts(body, params, context, prompt_tokens=1, time=datetime(2026, 11, 27, tzinfo=UTC))
    assert facts.headers == {"user-agent": "a"}


@every
def test_a_retry_gets_the_finished_answer(path: str) -> None:
    with served(FakeEngine()) as running:
        first, second = (post(running, path, idempotency_key="one") for _ in range(2))
        other = post(running, path, {"stream": True}, idempotency_key="one")
    assert second.headers["idempotency-replayed"] == "true"
    assert first.content == second.content
    assert len(running.engine.requests) == 1
    assert "another request" in check_error(path, other, 400)


@every
def test_the_mode_of_speculation_is_asked_for_by_header(path: str) -> None:
    with served(FakeEngine()) as running:
        reply = post(running, path, x_spec_mode="off")
    assert running.engine.requests[0].speculation.mode == "off"
    assert reply.headers["x-exactness"] == "strict"
    assert reply.headers["x-seed"] == str(running.engine.requests[0].params.seed)


@every
def test_what_is_not_served_is_named_in_a_warning(path: str) -> None:
    unknown = {f"f{i}": i for i in range(20)}
    with served(FakeEngine()) as running:
        few = post(running, path, {"zufällig\n": 1, "nothing": None})
        many = post(running, path, unknown)
        none = post(running, path)
    assert few.headers["warning"] == '299 - "without effect: zuf?llig?"'
    assert many.headers["warning"].endswith('and 4 more"')
    assert "warning" not in none.headers


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/completion", {"prompt": "Hi"}),
        ("/api/chat", {"model": "tiny", "messages": HI, "stream": False}),
        ("/api/generate", {"model": "tiny", "prompt": "Hi", "raw": True, "stream": False}),
        ("/v1/fim/completions", {"model": "tiny", "prompt": "Hi"}),
    ],
)
def test_without_a_limit_an_answer_may_fill_the_context_and_nothing_is_warned_of(
    path: str, body: dict[str, object]
) -> None:
    with served(FakeEngine()) as running:
        reply = httpx2.post(running.url + path, json=body)
        [asked] = running.engine.requests
    assert (reply.status_code, reply.headers.get("warning")) == (200, None)
    assert asked.params.max_tokens == running.engine.info.max_model_len - len(asked.prompt_token_ids)


@every
async def test_a_client_that_leaves_ends_its_request(path: str) -> None:
    with served(FakeEngine(hold_after=1)) as running:
        async with httpx2.AsyncClient(timeout=60) as http:
            asked = asyncio.create_task(http.post(running.url + path, json=BODIES[path]))
            await until(lambda: bool(running.engine.requests))
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: bool(running.engine.aborted))


@every
def test_answers_are_json_or_a_stream_of_the_dialect(path: str) -> None:
    with served(FakeEngine()) as running:
        whole, stream = post(running, path), post(running, path, {"stream": True})
    kind = "application/x-ndjson" if path.startswith("/api") else "text/event-stream; charset=utf-8"
    assert whole.headers["content-type"] == "application/json"
    assert stream.headers["content-type"] == kind
    assert len(running.engine.requests) == 2


async def test_a_knock_needs_no_key(keyed_app: KeyedApp) -> None:
    keyed_app.key()
    async with keyed_app.open(FakeEngine()) as http:
        reply = await http.head("/")
    assert (reply.status_code, reply.content) == (200, b"")
