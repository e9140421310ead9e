"""Web pages of other origins, HEAD and OPTIONS, compressed bodies, and what probes ask."""

import gzip
import json
from pathlib import Path

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.server.front.browsers import check_origins
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.world.site import Site

PAGE = "https://chat.example"
BODY = {"model": "tiny", "prompt": "ab", "max_tokens": 2}


def http(config: ServerConfig | None = None, keys: Keys | None = None) -> httpx2.AsyncClient:
    return Site(FakeEngine(), config or ServerConfig(), keys=keys).http


async def test_a_page_of_an_allowed_origin_may_call_and_read_the_headers() -> None:
    async with http(ServerConfig(allow_origin=(PAGE,))) as client:
        asked = {"origin": PAGE, "access-control-request-method": "POST", "access-control-request-headers": "x-title"}
        preflight = await client.options("/v1/completions", headers=asked)
        assert preflight.status_code == 200
        assert preflight.headers["access-control-allow-origin"] == PAGE
        assert "x-title" in preflight.headers["access-control-allow-headers"]
        answer = await client.post("/v1/completions", json=BODY, headers={"origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert "x-seed" in answer.headers["access-control-expose-headers"]
        refused = await client.post("/v1/completions", json={}, headers={"origin": PAGE})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (400, PAGE)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_without_keys_an_allowed_origin_reaches_no_admin_route(method: str) -> None:
    async with http(ServerConfig(allow_origin=(PAGE,))) as client:
        answer = await client.request(method, "/admin/kill", json={"on": True}, headers={"origin": PAGE})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_local")


async def test_other_origins_are_refused_as_before() -> None:
    for config in (ServerConfig(), ServerConfig(allow_origin=(PAGE,))):
        async with http(config) as client:
            asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
            assert "access-control-allow-origin" not in (await client.options("/v1/completions", headers=asked)).headers
            answer = await client.post("/v1/completions", json=BODY, headers={"origin": "https://evil.example"})
            assert answer.status_code == 403


async def test_any_origin_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"allow_origin is \*.*allowed: origins you trust"):
        check_origins(["*"], keys_required=False)
    file = KeyFile(tmp_path / "keys.json")
    record, key = new_key("acme", roles=("client",), tier="standard")
    file.add(record)
    async with http(ServerConfig(allow_origin=("*",)), Keys(file)) as client:
        headers = {"origin": PAGE, "authorization": f"Bearer {key}"}
        answer = await client.post("/v1/completions", json=BODY, headers=headers)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, "*")


async def test_options_name_the_methods_of_a_path() -> None:
    async with http() as client:
        for path, methods in (("/v1/completions", "OPTIONS, POST"), ("/v1/models", "GET, HEAD, OPTIONS")):
            answer = await client.options(path)
            assert (answer.status_code, answer.headers["allow"], answer.content) == (204, methods, b"")
        assert (await client.options("/none")).status_code == 404


async def test_head_is_get_without_the_body() -> None:
    async with http() as client:
        for path in ("/v1/models", "/health", "/"):
            whole, head = await client.get(path), await client.head(path)
            assert (head.status_code, head.content) == (whole.status_code, b"")
            assert head.headers["content-length"] == whole.headers["content-length"]
        assert (await client.head("/v1/completions")).status_code == 405


def test_head_over_http_leaves_the_connection_usable() -> None:
    with served(FakeEngine()) as server, httpx2.Client(base_url=server.url) as client:
        for _ in range(2):
            assert client.head("/v1/models").status_code == 200
        assert client.get("/v1/models").json()["data"]


async def test_a_browser_finds_the_playground_and_a_probe_an_answer() -> None:
    async with http() as client:
        page = await client.get("/", headers={"accept": "text/html,application/xhtml+xml"})
        assert (page.status_code, page.headers["location"]) == (307, "/console/playground")
        assert (await client.get("/")).text == "Prolepsis is running"
        assert (await client.get("/ping")).status_code == 200
        assert (await client.get("/load")).json() == {"server_load": 3}, "one runs and two wait"
        assert (await client.get("/docs")).headers["location"] == "/console/api"
        api = await client.get("/console/api")
        assert api.status_code == 200
        assert "POST /v1/chat/completions" in api.text
        assert "max_completion_tokens" in api.text


async def test_the_playground_has_the_models() -> None:
    async with http(ServerConfig(served_model_names=("one", "two"))) as client:
        page = await client.get("/console/playground")
    assert page.status_code == 200
    assert "<option>one</option><option>two</option>" in page.text


class TestCompressedBodies:
    async def answer(self, raw: bytes, config: ServerConfig | None = None) -> httpx2.Response:
        async with http(config) as client:
            return await client.post("/v1/completions", content=raw, headers={"content-encoding": "gzip"})

    async def test_gzip_is_read(self) -> None:
        assert (await self.answer(gzip.compress(json.dumps(BODY).encode()))).status_code == 200

    async def test_what_is_no_gzip_or_ends_early_is_refused(self) -> None:
        whole = gzip.compress(json.dumps(BODY).encode())
        for raw, words in (
            (json.dumps(BODY).encode(), "not valid gzip"),
            (whole[:-4], "ends inside"),
            (whole + whole, "behind the end"),
            (whole + b"\0", "behind the end"),
        ):
            answer = await self.answer(raw)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_gzip")
            assert words in answer.json()["error"]["message"]

    async def test_a_small_body_that_becomes_large_is_refused(self) -> None:
        answer = await self.answer(gzip.compress(b" " * 10_000_000), ServerConfig(max_body_bytes=65536))
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")

    def test_over_http(self) -> None:
        raw = gzip.compress(json.dumps(BODY).encode())
        with served(FakeEngine()) as server:
            headers = {"content-encoding": "gzip", "content-type": "application/json"}
            assert httpx2.post(f"{server.url}/v1/completions", content=raw, headers=headers).status_code == 200
            answer = httpx2.post(f"{server.url}/v1/completions", content=raw, headers={"content-encoding": "br"})
            assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity, gzip")
