"""Draft heads over HTTP: which are there, and another one in place of the one in use."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from prolepsis.core.config import ServerConfig
from prolepsis.core.engine_client import InstalledHead
from prolepsis.core.errors import ConfigError
from tests.fake_client import INFO
from tests.server.fakes import FakeEngine
from tests.world.site import Site

FACTS: dict[str, Any] = {"target": "tiny", "misfit": None, "size": 10, "chain_of_3": 2.5}
INSTALLED = (
    InstalledHead(name="mine", version=1, aliases=("champion",), **FACTS),
    InstalledHead(name="mine", version=2, aliases=(), **FACTS),
    InstalledHead(name="broken", version=1, aliases=(), **FACTS),
    InstalledHead(name="huge", version=1, aliases=(), **FACTS),
)


@pytest.fixture
def engine() -> FakeEngine:
    engine = FakeEngine(info=replace(INFO, draft_head_reason="no head is recorded for these weights (00ff)"))
    engine.installed = INSTALLED
    return engine


@pytest.fixture
def http(engine: FakeEngine, tmp_path: Path) -> httpx.AsyncClient:
    return Site(engine, ServerConfig(controls_file=tmp_path / "controls.json")).http


async def test_heads_are_shown_and_swapped_by_any_of_their_names(http: httpx.AsyncClient) -> None:
    before = (await http.get("/admin/heads")).json()
    assert (before["draft_head"], before["candidate_head"]) == (None, None)
    assert before["draft_head_reason"] == "no head is recorded for these weights (00ff)"
    first = before["heads"][0]
    assert (first["name"], first["version"], first["aliases"]) == ("mine", 1, ["champion"])
    swapped = await http.put("/admin/heads", json={"head": "mine@champion", "reason": "better"})
    assert (swapped.status_code, swapped.json()["current"]) == (200, "mine@champion")
    body = {"head": "mine@2", "proposer": "candidate_head"}
    assert (await http.put("/admin/heads", json=body)).json()["previous"] is None
    after = (await http.get("/admin/heads")).json()
    assert (after["draft_head"], after["candidate_head"]) == ("mine@champion", "mine@2")
    assert (await http.put("/admin/heads", json={"head": "none"})).json()["previous"] == "mine@champion"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"head": "other"}, 404, "unknown_head"),
        ({"head": "/etc"}, 404, "unknown_head"),
        ({"head": "mine@3"}, 404, "unknown_head"),
        ({"head": "broken"}, 409, "head_not_usable"),
        ({"head": "huge"}, 409, "head_not_usable"),
        ({"head": "mine", "proposer": "suffix"}, 400, "invalid_value"),
        ({}, 400, "missing_field"),
    ],
)
async def test_an_unusable_head_leaves_the_old_one_in_place(
    http: httpx.AsyncClient, engine: FakeEngine, body: dict[str, str], status: int, code: str
) -> None:
    reply = await http.put("/admin/heads", json=body)
    assert (reply.status_code, engine.swaps) == (status, [])
    if status != 400:
        assert reply.json()["error"]["code"] == code


async def test_a_damaged_file_of_aliases_is_not_the_callers_fault(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.heads_error = ConfigError("head aliases aliases.json is damaged: mine: input should be an object")
    for reply in (await http.get("/admin/heads"), await http.put("/admin/heads", json={"head": "mine"})):
        error = reply.json()["error"]
        assert (reply.status_code, error["code"]) == (503, "heads_unreadable")
        assert "aliases.json is damaged" in error["message"]
    assert engine.swaps == []
