"""Who gets past the guard: every route, every role, every size."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import pytest
from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from structlog.testing import capture_logs

from prolepsis.control.web.caller import ROLES
from prolepsis.control.web.intake import Intake, Uploads
from prolepsis.control.web.routes import (
    ADMINS,
    ANY_ROLE,
    AUDITORS,
    CLIENTS,
    FINDERS,
    OPEN,
    OPERATORS,
    READERS,
    WATCHERS,
    Roles,
    Route,
    Routes,
)
from prolepsis.core.config import LimitTerms, ServerConfig
from prolepsis.server.admission.metrics import AdmissionMetrics
from prolepsis.server.answering.stream import AnswerStream, Json
from prolepsis.server.front.keys import Keys
from prolepsis.server.front.sign_in import AuthMiddleware, RouteRules
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.answering.test_stream import never
from tests.server.fakes import FakeEngine
from tests.virtual_time import virtual_time

BODY = {"model": "tiny", "prompt": "Hi", "max_tokens": 4}


BY_ROLES: dict[Roles | None, str] = {
    None: "GET /health/live, GET /, GET /docs",
    OPEN: "GET /health, GET /health/ready, GET /ping",
    WATCHERS: "GET /health/deep, GET /metrics, GET /admin/kill, GET /admin/replicas, GET /admin/flags",
    ANY_ROLE: """
        GET /version, GET /openapi.json, GET /v1/models, GET /v1/models/{name:path}, GET /load, GET /api/tags,
        GET /api/ps, POST /api/show, GET /api/version, GET /props
    """,
    CLIENTS: """
        GET/POST /v1/files, GET/DELETE /v1/files/{file_id}, GET /v1/files/{file_id}/content, GET/POST /v1/batches,
        GET /v1/batches/{batch_id}, POST /v1/batches/{batch_id}/cancel, POST /v1/chat/completions,
        POST /v1/completions, POST /v1/responses, POST /v1/responses/input_tokens,
        GET/DELETE /v1/responses/{response_id}, GET /v1/responses/{response_id}/input_items,
        POST /v1/responses/{response_id}/cancel, POST /v1/fim/completions, POST /v1/decisions, POST /v1/candidates,
        POST /v1/verify/chat/completions, POST /v1/verify/completions, POST /v1/verify/{stream_id}/drafts,
        POST /v1/messages, POST /v1/messages/count_tokens, GET/POST/DELETE /v1/messages/{rest:path}, POST /api/chat,
        POST /api/generate, GET/POST/DELETE /api/{rest:path}, POST /api/pull, POST /completion, POST /completions,
        POST /infill, POST /apply-template, POST /tokenize, POST /detokenize, GET /tokenizer_info
    """,
    READERS: """
        GET /admin/rollouts, GET /admin/rollouts/{rollout_id}, GET /admin/policy, POST /admin/policy/check,
        POST /admin/policy/explain, GET /admin/policy/versions, GET /admin/policy/versions/{version},
        GET /admin/cost, GET /admin/verdicts, GET /admin/traffic, GET /admin/shadow, GET /admin/corpora,
        GET /admin/heads, GET /admin/learning, GET /admin/health, GET /admin/alerts
    """,
    OPERATORS: """
        POST /admin/rollouts/{rollout_id}/{command}, PUT /admin/policy, POST /admin/policy/rollback,
        PUT /admin/kill, PUT/DELETE /admin/flags, PUT/DELETE /admin/health, DELETE /admin/corpora/{file_id},
        PUT /admin/heads, PUT /admin/learning
    """,
    AUDITORS: """
        GET /admin/audit, GET /admin/audit/{entry}, POST /admin/audit/{entry}/replay,
        POST /admin/requests/{name}/bundle
    """,
    FINDERS: "GET /admin/requests/{name}, GET /admin/requests",
    ADMINS: "GET/POST/DELETE /admin/recording, GET /admin/recording/file, PUT /admin/drills",
}
EXPECTED = {
    f"{method} {path}": roles
    for roles, routes in BY_ROLES.items()
    for methods, _, path in (route.strip().partition(" ") for route in routes.split(","))
    for method in methods.split("/")
}
"""Who may use which route: a change here is a change of the product."""


def is_foreign(path: str) -> bool:
    """Return whether errors have the shape of a dialect (tests/server/dialects)."""
    return path.startswith(("/v1/messages", "/api/"))


def routes_of(keyed_app: KeyedApp) -> dict[str, Roles | None]:
    keyed_app.open(FakeEngine())
    routes = [route for route in keyed_app.app.routes if isinstance(route, Route)]
    assert len(routes) == len(keyed_app.app.routes), "every route is declared with its roles"
    of_api = [route for route in routes if not route.path.startswith("/console")]  # sessions: tests/ops/console
    return {f"{method} {route.path}": route.roles for route in of_api for method in route.methods or ()}


def test_every_route_has_its_roles(keyed_app: KeyedApp) -> None:
    assert routes_of(keyed_app) == EXPECTED


async def test_without_a_key_only_liveness_and_readiness_answer(keyed_app: KeyedApp) -> None:
    keyed_app.key()
    async with keyed_app.open(FakeEngine()) as http:
        for route in EXPECTED:
            method, path = route.split(" ")
            response = await http.request(method, path.replace("{name:path}", "tiny"))
            if path in ("/", "/docs", "/ping", "/health/live", "/health", "/health/ready"):
                assert response.status_code == (307 if path == "/docs" else 200)
                continue
            assert response.status_code == 401, route
            assert response.headers["www-authenticate"].startswith("Bearer")
            assert "This server needs an API key" in response.text
            if not is_foreign(path):
                assert response.json()["error"]["code"] == "missing_api_key"
                assert response.json()["error"]["type"] == "invalid_request_error"
        for path in ("/redoc", "/admin", "/none"):
            assert (await http.get(path)).status_code == 401
    assert keyed_app.refused("not_authenticated") == len(EXPECTED) - 6 + 3


async def test_each_role_opens_its_routes_and_no_others(keyed_app: KeyedApp) -> None:
    keys = {role: keyed_app.key(role) for role in ROLES}
    async with keyed_app.open(FakeEngine()) as http:
        for route, roles in EXPECTED.items():
            method, path = route.split(" ")
            for role, key in keys.items():
                response = await http.request(
                    method, path.replace("{name:path}", "tiny"), headers=bearer(key), json=BODY
                )
                allowed = not roles or role in roles or role == "admin"
                assert (response.status_code != 403) == allowed, (route, role)
                if not allowed:
                    assert f"the key has {role}" in response.text
                    assert is_foreign(path) or response.json()["error"]["code"] == "insufficient_permissions"


async def test_a_route_without_roles_does_not_exist(keyed_app: KeyedApp) -> None:
    key = keyed_app.key("admin")
    async with keyed_app.open(FakeEngine()) as http:

        @keyed_app.app.get("/hidden")
        async def hidden() -> str:
            return "treasure"

        response = await http.get("/hidden", headers=bearer(key))
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "unknown_url"
        wrong = await http.put("/v1/completions", headers=bearer(key))
        assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")


async def test_a_key_for_some_models_gets_no_others(keyed_app: KeyedApp) -> None:
    other, mine = keyed_app.key(models=("large",)), keyed_app.key(models=("tiny",))
    async with keyed_app.open(FakeEngine()) as http:
        refused = await http.post("/v1/completions", headers=bearer(other), json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "model_not_allowed")
        assert (await http.post("/v1/completions", headers=bearer(mine), json=BODY)).status_code == 200
        for key, names in ((other, []), (mine, ["tiny"])):
            listed = (await http.get("/v1/models", headers=bearer(key))).json()["data"]
            assert [model["id"] for model in listed] == names
        assert (await http.get("/v1/models/tiny", headers=bearer(other))).status_code == 403
    assert keyed_app.refused("model_not_allowed") == 2


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000"])
async def test_without_keys_programs_on_this_machine_are_served(keyed_app: KeyedApp, host: str) -> None:
    async with keyed_app.open(FakeEngine()) as http:
        for headers in ({}, {"origin": f"http://{host}"}, {"origin": "https://localhost:3000"}):
            assert (await http.get("/v1/models", headers={"host": host, **headers})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": host}
        for host in (
            "evil.example",
            "evil.example:8000",
            "localhost.evil.example",
            "10.0.0.1",
            "",
            "localhost@evil",
            "[::2]",
        )
    ]
    + [{"origin": origin} for origin in ("https://evil.example", "null", "http://localhost.evil.example", "file://")],
)
async def test_without_keys_web_pages_from_elsewhere_are_refused(keyed_app: KeyedApp, headers: dict[str, str]) -> None:
    async with keyed_app.open(engine := FakeEngine()) as http:
        response = await http.post("/v1/completions", json=BODY, headers=headers)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "not_local")
    assert keyed_app.refused("not_local") == 1
    assert engine.requests == []


async def test_with_keys_any_name_of_the_server_will_do(keyed_app: KeyedApp) -> None:
    headers = bearer(keyed_app.key()) | {"host": "api.example", "origin": "https://app.example"}
    async with keyed_app.open(FakeEngine()) as http:
        assert (await http.post("/v1/completions", json=BODY, headers=headers)).status_code == 200


async def test_sizes(keyed_app: KeyedApp) -> None:
    config = ServerConfig(max_body_bytes=4096, limits=LimitTerms(max_header_bytes=2048))
    async with keyed_app.open(FakeEngine(), config) as http:
        large = await http.post("/v1/completions", content=b" " * 5000)
        assert (large.status_code, large.json()["error"]["code"]) == (413, "request_too_large")
        for headers in ({"x": "y" * 3000}, {f"x-{i}": "" for i in range(130)}):
            long = await http.get("/v1/models", headers=headers)
            assert (long.status_code, long.json()["error"]["code"]) == (431, "request_headers_too_large")
        assert (await http.get("/v1/models/" + "x" * 3000)).status_code == 431
    assert keyed_app.refused("headers_too_large") == 3


async def test_a_body_of_no_stated_length_is_bounded_too(keyed_app: KeyedApp) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(10):
            yield b" " * 1000

    async with keyed_app.open(FakeEngine(), ServerConfig(max_body_bytes=4096)) as http:
        response = await http.post("/v1/completions", content=chunks())
    assert (response.status_code, response.json()["error"]["code"]) == (413, "request_too_large")
    assert keyed_app.refused("body_too_large") == 1


async def test_an_upload_that_never_ends_is_408(keyed_app: KeyedApp) -> None:
    async def trickle() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    async with keyed_app.open(FakeEngine(), ServerConfig(limits=LimitTerms(upload_timeout_s=0.05))) as http:
        response = await http.post("/v1/completions", content=trickle())
    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
    assert keyed_app.refused("upload_too_slow") == 1


def scope(path: str, kind: str = "http") -> Scope:
    return {
        "type": kind,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1:8000")],
    }


async def nothing() -> Message:
    raise AssertionError("nothing is received")


def guard(app: Callable[..., object], config: ServerConfig | None = None) -> AuthMiddleware:
    routes = Routes()

    @routes.get("/v1/models", roles=ANY_ROLE, summary="Served models")
    async def models() -> None:
        """Not reached: `app` stands behind the guard."""

    return AuthMiddleware(
        app,  # type: ignore[arg-type]
        keys=Keys(None),
        config=config or ServerConfig(),
        metrics=AdmissionMetrics(CollectorRegistry()),
        intake=Intake(Uploads(4096)),
        rules=RouteRules(routes.all),
    )


async def test_web_sockets_are_closed() -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await guard(nothing)(scope("/v1/models", "websocket"), nothing, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


@virtual_time
async def test_a_client_that_takes_nothing_ends_its_request() -> None:
    """The route learns it as a client that left, at once from the second time on."""
    caught: list[float] = []
    loop = asyncio.get_running_loop()

    async def route(_scope: Scope, _receive: object, send: Callable[[Message], object]) -> None:
        for _ in range(2):
            started = loop.time()
            with pytest.raises(ClientDisconnect):
                await send({"type": "http.response.body", "body": b"x"})  # type: ignore[misc]
            caught.append(loop.time() - started)

    async def stalled(_: Message) -> None:
        await asyncio.Event().wait()

    await guard(route, ServerConfig(limits=LimitTerms(write_timeout_s=0.05)))(scope("/v1/models"), nothing, stalled)
    assert caught == [0.05, 0.0]


@virtual_time
async def test_a_client_that_takes_nothing_is_not_a_failure() -> None:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse({})(scope, receive, send)

    async def events() -> AsyncGenerator[Json, None]:
        while True:
            yield {}

    async def stalled(message: Message) -> None:
        if message.get("body"):
            await asyncio.Event().wait()

    with capture_logs() as logs:
        for app in (route, AnswerStream(events())):
            await guard(app, ServerConfig(limits=LimitTerms(write_timeout_s=0.02)))(scope("/v1/models"), never, stalled)
    assert logs == []


@virtual_time
async def test_a_reader_that_stalls_later_in_a_stream_is_not_a_failure() -> None:
    ended = False

    async def events() -> AsyncGenerator[Json, None]:
        nonlocal ended
        try:
            for _ in range(9):
                yield {}
        finally:
            ended = True

    sent: list[Message] = []

    async def stalls(message: Message) -> None:
        sent.append(message)
        if len(sent) == 4:
            await asyncio.Event().wait()

    with capture_logs() as logs:
        app = guard(AnswerStream(events()), ServerConfig(limits=LimitTerms(write_timeout_s=0.02)))
        await app(scope("/v1/models"), never, stalls)
    assert (logs, len(sent), ended) == ([], 4, True)
