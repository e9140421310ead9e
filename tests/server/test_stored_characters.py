"""Characters that no database holds are the client's error at every door; a prompt may have any."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.control.store.databases import cut_off
from tests.server.batches.conftest import serving
from tests.server.conftest import Served
from tests.server.fakes import FakeEngine

ODD = "a\x00b"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
Ask = Callable[[str], httpx2.Response]


def upload(url: str, name: bytes = b"a", purpose: bytes = b"batch") -> httpx2.Response:
    head = b'--b\r\nContent-Disposition: form-data; name="'
    form = (
        head + b'purpose"\r\n\r\n' + purpose + b"\r\n" + head + b'file"; filename="' + name + b'"\r\n\r\nx\r\n--b--\r\n'
    )
    return httpx2.post(f"{url}/v1/files", content=form, headers={"content-type": "multipart/form-data; boundary=b"})


def post(path: str, **body: object) -> Ask:
    return lambda url: httpx2.post(f"{url}{path}", json=body)


REFUSED: list[tuple[Ask, str | None]] = [
    (post("/v1/chat/completions", **CHAT, user=ODD), "user"),
    (post("/v1/chat/completions", **CHAT, metadata={"a": ODD}), "metadata"),
    (post("/v1/chat/completions", **CHAT, metadata={ODD: "a"}), "metadata"),
    (post("/v1/chat/completions", **{**CHAT, "model": ODD}), "model"),
    (post("/v1/chat/completions", **CHAT, safety_identifier=ODD), "safety_identifier"),
    (post("/v1/chat/completions", **CHAT, **{ODD: 1}), ODD),
    (post("/v1/responses", model="tiny", input="Hi", previous_response_id=ODD), "previous_response_id"),
    (post("/v1/messages", **CHAT, max_tokens=9, metadata={"user_id": ODD}), None),
    (post("/v1/batches", input_file_id=ODD, endpoint="/v1/completions", completion_window="24h"), "input_file_id"),
    (lambda url: upload(url, name=b"a\x00b"), "file"),
    (lambda url: upload(url, purpose=b"a\x00b"), "purpose"),
    (lambda url: httpx2.get(f"{url}/v1/files?after=a%00b"), "after"),
    (lambda url: httpx2.get(f"{url}/v1/files?a%00b=1"), ODD),
    (lambda url: httpx2.get(f"{url}/v1/files/a%00b"), None),
    (lambda url: httpx2.delete(f"{url}/v1/responses/a%00b"), None),
    (lambda url: httpx2.get(f"{url}/v1/models/a%00b"), None),
    (lambda url: httpx2.get(f"{url}/admin/requests/a%00b"), None),
    (lambda url: httpx2.get(f"{url}/admin/audit?tenant=a%00b"), "tenant"),
    (lambda url: httpx2.put(f"{url}/admin/kill", json={"on": False, "reason": ODD}), "reason"),
    (lambda url: httpx2.put(f"{url}/admin/flags", json={"flag": ODD, "value": True, "reason": "r"}), "flag"),
    (lambda url: httpx2.put(f"{url}/admin/policy", json={"text": ODD, "reason": "r"}), "text"),
    (lambda url: httpx2.post(f"{url}/v1/completions", content=b'{"model": "tiny", "user": "\\ud800"}'), None),
]


@pytest.fixture(params=["sqlite", "postgresql"])
def setting(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue(request.param))


@pytest.fixture
def server(setting: str) -> Iterator[Served]:
    with serving(setting) as start:
        yield start(FakeEngine(), response_retention_days=1)


def test_what_no_database_holds_is_refused_at_each_door(server: Served) -> None:
    for number, (ask, param) in enumerate(REFUSED):
        reply = ask(server.url)
        assert reply.status_code == 400, (number, reply.text)
        error: Any = reply.json()["error"]
        assert param is None or error["param"] == param, (number, reply.text)


def test_a_prompt_may_have_any_character_and_its_response_is_stored(server: Served) -> None:
    reply = httpx2.post(f"{server.url}/v1/responses", json={"model": "tiny", "input": ODD}).json()
    assert reply["store"] is True
    items = httpx2.get(f"{server.url}/v1/responses/{reply['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["text"] == ODD
    nested = {"model": "tiny", "messages": [{"role": "user", "content": "Hi", ODD: 1}]}
    assert httpx2.post(f"{server.url}/v1/chat/completions", content=json.dumps(nested)).status_code == 200


def test_clients_do_not_see_where_the_store_is(server: Served, setting: str) -> None:
    if setting.startswith("sqlite"):
        Path(setting.removeprefix("sqlite:///")).unlink()
        refuse_all(server)
    else:
        with cut_off(setting):
            refuse_all(server)


def refuse_all(server: Served) -> None:
    for path in ("/v1/files", "/v1/batches", "/v1/responses/resp_a", "/v1/files/a", "/v1/files/a/content"):
        reply = httpx2.get(f"{server.url}{path}")
        assert (reply.status_code, reply.headers["retry-after"]) == (503, "5"), path
        assert reply.json()["error"]["message"] == "The store is busy or cannot be reached; send the request again."
        assert reply.json()["error"]["code"] == "store_unavailable"
