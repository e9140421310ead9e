"""What llama.cpp's clients ask about the server, and gaps that a model cannot fill."""

import httpx2

from tests.server.admission.conftest import KeyedApp, bearer
from tests.server.conftest import Served
from tests.server.fakes import FakeEngine


async def test_the_model_is_described(keyed_app: KeyedApp) -> None:
    key = keyed_app.key(models=("tiny",))
    async with keyed_app.open(FakeEngine()) as http:
        props = (await http.get("/props", headers=bearer(key))).json()
    settings = props["default_generation_settings"]
    assert (settings["n_ctx"], settings["params"]["temperature"]) == (512, 1.0)
    assert (props["model_alias"], props["eos_token"], props["bos_token"]) == ("tiny", "<end>", "")
    assert props["chat_template"] == "roles and text"


async def test_without_a_name_the_first_model_of_the_key_answers(keyed_app: KeyedApp) -> None:
    mine, other = keyed_app.key(models=("tiny",)), keyed_app.key(models=("large",))
    async with keyed_app.open(FakeEngine()) as http:
        reply = await http.post("/completion", headers=bearer(mine), json={"prompt": "Hi"})
        assert reply.json()["model"] == "tiny"
        assert (await http.post("/completion", headers=bearer(other), json={"prompt": "Hi"})).status_code == 403


def test_messages_become_a_prompt(shared: Served) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    reply = httpx2.post(f"{shared.url}/apply-template", json={"messages": messages}).json()
    tokens = httpx2.post(f"{shared.url}/tokenize", json={"messages": messages}).json()["tokens"]
    assert reply == {"prompt": "user:Hi\n"}
    assert list(reply["prompt"].encode()) == tokens


def test_a_model_without_marks_fills_no_gap(shared: Served) -> None:
    reply = httpx2.post(f"{shared.url}/infill", json={"input_prefix": "a", "input_suffix": "b"})
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "input_suffix"
    assert "no marks to fill a middle by" in reply.json()["error"]["message"]
