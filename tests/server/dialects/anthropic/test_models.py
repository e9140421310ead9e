"""Models as Anthropic's API lists them, for clients that send its header."""

from dataclasses import replace
from typing import Any

import httpx2
import pytest

from prolepsis.core.config import ServerConfig
from tests.fake_client import INFO
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine

VERSION = {"anthropic-version": "2023-06-01"}
NAMES = ("a", "b", "c", "d")


def listed(running: Served, query: str, status: int = 200) -> dict[str, Any]:
    reply = httpx2.get(f"{running.url}/v1/models?{query}", headers=VERSION)
    assert reply.status_code == status, reply.text
    return dict(reply.json())


def test_models_come_page_by_page() -> None:
    pages = {
        "": ("abcd", False),
        "limit=2": ("ab", True),
        "after_id=b": ("cd", False),
        "after_id=a&limit=2": ("bc", True),
        "after_id=d": ("", False),
        "before_id=d&limit=2": ("bc", True),
        "before_id=b": ("a", False),
        "after_id=a&before_id=d": ("bc", False),
    }
    with served(FakeEngine(), ServerConfig(served_model_names=NAMES)) as running:
        for query, (names, has_more) in pages.items():
            page = listed(running, query)
            assert "".join(model["id"] for model in page["data"]) == names, query
            ends = (names[0], names[-1]) if names else (None, None)
            assert (page["has_more"], page["first_id"], page["last_id"]) == (has_more, *ends)
        for query in ("limit=0", "after_id=x", "before_id=x", "order=asc"):
            error = listed(running, query, 400)
            assert (error["type"], error["error"]["type"]) == ("error", "invalid_request_error")
            assert query.partition("=")[0] in error["error"]["message"]


def test_one_model_and_its_name() -> None:
    engine = FakeEngine(info=replace(INFO, model="Tiny"))
    with served(engine, ServerConfig(served_model_names=("org/a",))) as running:
        url = f"{running.url}/v1/models"
        model, missing = (httpx2.get(f"{url}/{name}", headers=VERSION) for name in ("org/a", "x"))
        assert httpx2.get(f"{url}/org/a").json()["object"] == "model"
        assert httpx2.get(url).json()["object"] == "list"
    assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
    assert model.json().pop("created_at").endswith("+00:00")
    assert {**model.json(), "created_at": ""} == {
        "type": "model",
        "id": "org/a",
        "display_name": "Tiny",
        "created_at": "",
        "lifecycle": "active",
        "max_input_tokens": 512,
        "max_tokens": 512,
    }


@pytest.mark.parametrize("query", ["", "?limit=1"])
def test_without_the_header_the_shape_is_openais(shared: Served, query: str) -> None:
    assert httpx2.get(f"{shared.url}/v1/models{query}").json()["object"] == "list"
