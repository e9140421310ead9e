"""What Ollama's clients ask about models."""

import httpx
import pytest

from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.conftest import Served
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


def test_the_version_is_one_that_clients_can_compare(shared: Served) -> None:
    version = httpx.get(f"{shared.url}/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] > [0, 30]
