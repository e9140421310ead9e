"""/admin/learning and its page: what is shown, and what an operator may do."""

from pathlib import Path

import httpx2
import pytest

from prolepsis.control.learning.machine import Ended
from prolepsis.control.learning.shown import shown
from prolepsis.core.config import CANDIDATE_HEAD, ServerConfig
from tests.control.learning.chain import POLICY, Server, Sites
from tests.world.site import Site


@pytest.fixture
def sites(tmp_path: Path) -> Sites:
    return Sites(tmp_path)


@pytest.fixture
def http(tmp_path: Path) -> httpx2.AsyncClient:
    return Site(config=ServerConfig(controls_file=tmp_path / "controls.json"), folder=tmp_path, policy=POLICY).http


async def test_a_run_is_begun_and_stopped_by_hand(http: httpx2.AsyncClient) -> None:
    empty = (await http.get("/admin/learning")).json()
    assert (empty["runs"], empty["heads"], empty["rules"][0]["serves"]) == ([], [], "acme")
    begun = await http.put("/admin/learning", json={"act": "run", "rule": "code", "reason": "new repository"})
    assert begun.status_code == 200, begun.text
    run = begun.json()["runs"][0]
    assert (run["phase"], run["trigger"], run["terms"]["gain"]) == ("due", "hand", 0.03)
    assert "new repository" in run["why"]
    again = await http.put("/admin/learning", json={"act": "run", "rule": "code"})
    assert (again.status_code, again.json()["error"]["code"]) == (409, "learning_under_way")
    stopped = await http.put("/admin/learning", json={"act": "stop"})
    assert stopped.json()["runs"][0]["outcome"] == "stopped"
    assert (await http.put("/admin/learning", json={"act": "stop"})).status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"act": "run", "rule": "chat"}, 404, "unknown_rule"),
        ({"act": "run"}, 404, "unknown_rule"),
        ({"act": "retire", "head": "code@9"}, 404, "unknown_head"),
        ({"act": "promote"}, 400, "invalid_value"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    http: httpx2.AsyncClient, body: dict[str, str], status: int, code: str
) -> None:
    reply = await http.put("/admin/learning", json=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


async def test_what_an_operator_did_is_told_once_and_under_their_name(sites: Sites) -> None:
    first, second = Server(sites), Server(sites)
    assert await first.learning.begin(await first.learning.read(), "code", "hand", "", "ann")
    await second.tick()
    await first.learning.step(await first.learning.read(), Ended("stopped", "by ann"), "ann")
    await second.tick()
    told = [(event.action, event.actor) for event in sites.events if event.action.startswith("learning.")]
    assert told == [("learning.due", "ann"), ("learning.stopped", "ann")]


async def test_the_page_shows_the_run_and_its_buttons(http: httpx2.AsyncClient) -> None:
    await http.put("/admin/learning", json={"act": "run", "rule": "code"})
    page = (await http.get("/console/learning")).text
    for text in ("it waits for a process", "Train code", "Stop code", "No head was learnt yet."):
        assert text in page


async def test_the_run_says_how_far_its_trial_is(sites: Sites) -> None:
    server = Server(sites)
    assert await server.learning.begin(await server.learning.read(), "code", "hand", "")
    sites.train("code@1")
    for _ in range(3):
        await server.tick()
    show = next(route for route in server.learning.routes if "GET" in (route.methods or ()))
    reply = await show.endpoint()
    assert reply.runs[0].reason.startswith("shadow: 0 requests with the candidate")
    assert reply.heads[0].state == "candidate"
    assert server.slots == {CANDIDATE_HEAD: "code@1"}


def test_heads_say_what_became_of_them(sites: Sites) -> None:
    sites.head("code@1", promoted_at=1.0)
    sites.head("code@2", promoted_at=2.0, touched="tenant forgotten")
    sites.head("code@3", retired="slower", made_at=sites.clock.now + 1.0)
    sites.head("code@4")
    found = {each.head: (each.state, each.touched, each.retired) for each in shown(sites.database, {}).heads}
    assert found == {
        "code@1": ("", "", ""),
        "code@2": ("champion", "tenant forgotten", ""),
        "code@3": ("", "", "slower"),
        "code@4": ("", "", ""),
    }
    assert next(iter(found)) == "code@3"
