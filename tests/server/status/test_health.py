import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path

import httpx2

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import EngineDead, NotFinite
from prolepsis.core.events import Event, Failed
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.status.service_health import DeepCheck
from tests.fake_client import INFO
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.world.site import Site

Connect = Callable[[FakeEngine], httpx2.AsyncClient]


async def test_live_and_ready(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    for route in ("/health", "/health/ready", "/health/live"):
        assert (await http.get(route)).status_code == 200
    engine.reported = replace(engine.reported, ready=False, detail="preparing the forward for 8 rows")
    assert (await http.get("/health/live")).status_code == 200
    response = await http.get("/health/ready")
    assert response.status_code == 503
    assert response.json()["detail"] == "preparing the forward for 8 rows"
    assert response.json()["exactness"] == "strict"
    engine.reported = replace(engine.reported, alive=False)
    assert (await http.get("/health/live")).status_code == 503


async def test_readiness_says_where_drafts_can_pay_and_why_no_head_drafts(client: Connect) -> None:
    pays, reason = "drafts cannot pay on this model here beyond 24 at once", "no head is recorded for these weights"
    http = client(FakeEngine(info=replace(INFO, paying_loads=pays, draft_head_reason=reason)))
    reply = (await http.get("/health/ready")).json()
    assert (reply["paying_loads"], reply["draft_head"], reply["draft_head_reason"]) == (pays, None, reason)


async def test_a_gateway_without_a_key_learns_whether_it_is_ready_and_no_more(tmp_path: Path) -> None:
    engine, file = FakeEngine(), KeyFile(tmp_path / "keys.json")
    record, key = new_key("acme", roles=("client",), tier="standard")
    file.add(record)
    app = build(ServerConfig(), engine, ByteTokenizer(), Metrics(), keys=Keys(file))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://10.0.0.7:8000") as http:
        for route in ("/health", "/health/ready"):
            found = await http.get(route)
            assert (found.status_code, found.json()) == (200, {"ready": True})
            known = await http.get(route, headers={"authorization": f"Bearer {key}"})
            assert (known.status_code, known.json()["model"]) == (200, "tiny")
            assert (await http.get(route, headers={"authorization": "Bearer wrong"})).status_code == 401
        engine.reported = replace(engine.reported, ready=False, detail="one step lasts for 61 s")
        stuck = await http.get("/health/ready")
        assert (stuck.status_code, stuck.json()) == (503, {"ready": False})


async def test_without_keys_only_local_callers_learn_more(client: Connect) -> None:
    """A page of another site that reaches the server by its own name learns no names of models."""
    http = client(FakeEngine())
    assert (await http.get("/health/ready")).json()["model"] == "tiny"
    found = await http.get("/health/ready", headers={"host": "evil.example"})
    assert (found.status_code, found.json()) == (200, {"ready": True})


async def test_an_engine_that_prepares_already_serves(client: Connect) -> None:
    engine = FakeEngine()
    engine.reported = replace(engine.reported, ready=False)
    response = await client(engine).post("/v1/completions", json={"model": "tiny", "prompt": "x"})
    assert response.status_code == 200


async def test_served_names_replace_the_models_own() -> None:
    engine = FakeEngine(info=replace(INFO, model="/models/tiny"))
    async with Site(engine, ServerConfig(served_model_names=("a", "org/b"))).http as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["a", "org/b"]
        assert (await http.get("/v1/models/org/b")).json()["id"] == "org/b"
        for name, status in (("a", 200), ("/models/tiny", 404)):
            assert (await http.post("/v1/completions", json={"model": name, "prompt": "x"})).status_code == status


async def test_deep_health_of_a_dead_engine(client: Connect) -> None:
    response = await client(FakeEngine(error=EngineDead("the engine thread ended"))).get("/health/deep")
    assert response.status_code == 503
    assert response.json()["detail"] == "the engine thread ended"


class _Spoilt(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        yield Failed(request.request_id, NotFinite("the model computed no number"), RequestStats())


async def test_deep_health_says_why_its_request_failed(client: Connect) -> None:
    response = await client(_Spoilt()).get("/health/deep")
    assert (response.status_code, response.json()["detail"]) == (503, "the model computed no number")


class _Mute(FakeEngine):
    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        await asyncio.Event().wait()
        yield  # type: ignore[misc]


async def test_deep_health_is_bounded_in_time() -> None:
    health = await DeepCheck(_Mute(), timeout_s=0.05).result()
    assert not health.healthy
    assert health.detail == "not 8 tokens within 0.05 s"
    assert health.ms >= 50
