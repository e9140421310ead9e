"""Several models behind one address: the name selects, keys are obeyed, and each is there as a whole."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from prolepsis.server.multi_model import MultiModelApp
from prolepsis.server.services import Services
from tests.fake_client import INFO
from tests.server.admission.conftest import bearer
from tests.server.application import build
from tests.server.fakes import ByteTokenizer, FakeEngine


class Scene:
    """The models chat and org/code."""

    def __init__(self, keys: KeyFile | None = None) -> None:
        self.keys = keys
        self.chat = FakeEngine("chat says", info=replace(INFO, model="one"))
        self.code = FakeEngine("code says", info=replace(INFO, model="two", max_model_len=77))
        second = self.app(self.code, "org/code")
        first = self.app(self.chat, "chat", others=[second.state.services])
        self.whole = MultiModelApp({"chat": first, "org/code": second})

    def app(self, engine: FakeEngine, name: str, others: Sequence[Services] = ()) -> FastAPI:
        config = ServerConfig(served_model_names=(name,), replay_sample=0.0)
        return build(config, engine, ByteTokenizer(), Metrics(), keys=Keys(self.keys), others=others)

    def client(self) -> httpx2.AsyncClient:
        return httpx2.AsyncClient(transport=httpx2.ASGITransport(self.whole), base_url="http://localhost")


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ("/v1/responses", {"input": "x"}),
    ],
)
async def test_the_name_selects_the_engine(path: str, asked: dict[str, object]) -> None:
    scene = Scene()
    async with scene.client() as http:
        for name, engine, text in (("chat", scene.chat, "chat says"), ("org/code", scene.code, "code says")):
            reply = await http.post(path, json={"model": name, **asked})
            assert (reply.status_code, text in reply.text) == (200, True)
            streamed = await http.post(path, json={"model": name, "stream": True, **asked})
            assert streamed.status_code == 200
            assert len(engine.requests) == 2
        unknown = await http.post(path, json={"model": "none", **asked})
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert "served here: chat, org/code" in unknown.json()["error"]["message"]


async def test_all_models_are_listed() -> None:
    async with Scene().client() as http:
        listed = (await http.get("/v1/models")).json()["data"]
        assert [(one["id"], one["root"]) for one in listed] == [("chat", "one"), ("org/code", "two")]
        assert (await http.get("/v1/models/org/code")).json()["max_model_len"] == 77
        assert (await http.post("/tokenize", json={"model": "org/code", "prompt": "x"})).json()["max_model_len"] == 77


async def test_a_key_may_use_its_models_only(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    record, key = new_key("acme", roles=("client",), models=("org/code",))
    file.add(record)
    async with Scene(file).client() as http:
        for name, status in (("org/code", 200), ("chat", 403), ("none", 404)):
            reply = await http.post("/v1/completions", json={"model": name, "prompt": "x"}, headers=bearer(key))
            assert reply.status_code == status
        assert [one["id"] for one in (await http.get("/v1/models", headers=bearer(key))).json()["data"]] == ["org/code"]
        assert (await http.post("/detokenize", json={"tokens": [72]}, headers=bearer(key))).status_code == 200
        assert (await http.get("/models/org/code/health/ready")).json() == {"ready": True}
        assert (await http.get("/models/org/code/metrics")).status_code == 401


async def test_each_model_is_there_as_a_whole() -> None:
    scene = Scene()
    async with scene.client() as http:
        for _ in range(3):
            await http.post("/v1/completions", json={"model": "org/code", "prompt": "x"})
        for prefix, model, number in (("", "one", 0), ("/models/chat", "one", 0), ("/models/org/code", "two", 3)):
            assert (await http.get(f"{prefix}/health/ready")).json()["model"] == model
            lines = (await http.get(f"{prefix}/metrics")).text.splitlines()
            ended = [float(line.split()[-1]) for line in lines if line.startswith("prolepsis_requests_total{")]
            assert sum(ended) == number
        for path in ("/models/none/health/ready", "/models/org/codehealth", "/models/chat"):
            assert (await http.get(path)).status_code == 404


def test_the_applications_live_and_end_together() -> None:
    scene = Scene()
    with TestClient(scene.whole, base_url="http://localhost") as http:
        assert http.get("/health/ready").status_code == 200
        assert not scene.chat.closed
    assert (scene.chat.closed, scene.code.closed) == (True, True)


def test_two_models_of_one_name_are_refused() -> None:
    scene = Scene()
    other = scene.app(scene.code, "chat")
    with pytest.raises(ConfigError, match="'chat' is the name of two models"):
        scene.app(scene.chat, "chat", others=[other.state.services])
