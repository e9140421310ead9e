"""What Ollama's clients ask about models."""

from dataclasses import replace

import httpx2
import pytest

from prolepsis.core.model_files import ModelFiles
from prolepsis.engine.text.named_tokens import FillMarks
from tests.fake_client import INFO
from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.conftest import Served, served
from tests.server.fakes import ByteTokenizer, FakeEngine


@pytest.mark.parametrize("path", ["tags", "ps"])
async def test_models_are_those_that_the_key_may_use(path: str, keyed_app: KeyedApp) -> None:
    mine, other = keyed_app.key(models=("tiny",)), keyed_app.key(models=("large",))
    async with keyed_app.open(FakeEngine()) as http:
        [model] = (await http.get(f"/api/{path}", headers=bearer(mine))).json()["models"]
        assert (await http.get(f"/api/{path}", headers=bearer(other))).json() == {"models": []}
        assert (await http.post("/api/show", headers=bearer(other), json={"model": "tiny"})).status_code == 403
    assert (model["name"], model["model"], len(model["digest"])) == ("tiny", "tiny", 64)
    assert model["context_length"] == 512


@pytest.mark.parametrize(
    ("template", "capabilities"),
    [("roles", ["completion", "tools"]), ("<think></think>", ["completion", "tools", "thinking"])],
)
async def test_a_model_says_what_it_can_do(template: str, capabilities: list[str], keyed_app: KeyedApp) -> None:
    key = keyed_app.key()
    async with keyed_app.open(FakeEngine(), tokenizer=ByteTokenizer(template)) as http:
        shown = (await http.post("/api/show", headers=bearer(key), json={"model": "tiny:latest"})).json()
    assert (shown["template"], shown["capabilities"]) == (template, capabilities)
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 512


FILES = ModelFiles(
    format="gguf",
    architecture="qwen2",
    parameter_size="1.5B",
    quantization="Q4_K_M",
    num_bytes=1_117_320_768,
    modified=0.5,
    facts={"general.architecture": "qwen2", "qwen2.context_length": 32768, "qwen2.embedding_length": 1536},
    digest="ab" * 32,
)


def test_a_model_is_described_as_its_files_have_it() -> None:
    class Filling(ByteTokenizer):
        fill_marks = FillMarks(253, 254, 255)

    with served(FakeEngine(info=replace(INFO, files=FILES)), tokenizer=Filling()) as running:
        [listed] = httpx2.get(f"{running.url}/api/tags").json()["models"]
        shown = httpx2.post(f"{running.url}/api/show", json={"name": "tiny"}).json()
    details = {"parent_model": "", "format": "gguf", "family": "qwen2", "families": ["qwen2"]}
    assert listed["details"] == shown["details"] == details | {"parameter_size": "1.5B", "quantization_level": "Q4_K_M"}
    assert (listed["size"], listed["digest"], listed["modified_at"]) == (
        FILES.num_bytes,
        FILES.digest,
        "1970-01-01T00:00:00.500000Z",
    )
    assert shown["model_info"] == {**FILES.facts, "qwen2.context_length": 512}, "the context that is served"
    assert shown["capabilities"] == ["completion", "tools", "insert"]


@pytest.mark.parametrize(("stream", "kind"), [(None, "application/x-ndjson"), (False, "application/json")])
def test_a_model_that_is_served_is_there(shared: Served, stream: bool | None, kind: str) -> None:
    reply = httpx2.post(f"{shared.url}/api/pull", json={"model": "tiny:latest", "stream": stream})
    assert (reply.status_code, reply.headers["content-type"], reply.json()) == (200, kind, {"status": "success"})
    assert "warning" not in reply.headers


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("POST", "pull", "'llama3' does not exist; served here: tiny"),
        ("POST", "create", "models are chosen when the server starts"),
        ("POST", "copy", "models are chosen when the server starts"),
        ("POST", "push", "models are chosen when the server starts"),
        ("DELETE", "delete", "models are chosen when the server starts"),
        ("POST", "blobs/sha256:ab", "models are chosen when the server starts"),
        ("POST", "embed", "generates text"),
        ("POST", "embeddings", "generates text"),
    ],
)
def test_what_is_not_there_says_why(shared: Served, method: str, path: str, what: str) -> None:
    reply = httpx2.request(method, f"{shared.url}/api/{path}", json={"model": "llama3"})
    assert (reply.status_code, list(reply.json())) == (404, ["error"])
    assert what in reply.json()["error"]


def test_the_version_is_one_that_clients_can_compare(shared: Served) -> None:
    version = httpx2.get(f"{shared.url}/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] > [0, 30]
