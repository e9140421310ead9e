"""Each button does what its admin route does, as its caller, with a reason that is recorded."""

import re
from collections.abc import Callable

import httpx2
import pytest

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry
from tests.ops.console.browser import press, sign_in, token_of
from tests.ops.console.scene import Scene, key_with

Browse = Callable[[Scene], httpx2.AsyncClient]


def entries(site: Scene, action: str) -> list[AuditEntry]:
    assert site.store.writer.flush(20.0)
    with site.store.database.read() as connection:
        return [entry for entry in chain.entries(connection) if entry.action == action]


async def test_every_act_names_a_declared_admin_route(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    sent = await http.post("/console/act/none", data={"csrf": token_of(await http.get("/console"))})
    acts = re.findall(r"[a-z-]+", sent.text.partition("allowed: ")[2].partition(".")[0])
    assert len(acts) == 13
    for act in acts:
        page = await press(http, act, reason="test")
        assert "Nothing was changed." in page.text, act
        assert "The server failed" not in page.text, act


async def test_the_kill_switch_is_turned_by_the_key_that_signed_in(keyed_scene: Scene, browse: Browse) -> None:
    http, key = browse(keyed_scene), key_with(keyed_scene, "operator")
    await sign_in(http, key)
    page = await press(http, "kill", on="true", scope="proposer:suffix", reason="odd text")
    assert "Kill switch for proposer:suffix: speculation is stopped." in page.text
    [entry] = entries(keyed_scene, "kill.on")
    assert entry.details is not None
    assert (entry.details.actor, entry.details.subject) == (key.split("_")[1], "proposer:suffix")
    page = await press(http, "kill", "/console/kill", on="false", scope="proposer:suffix", reason="fine again")
    assert "Nothing is stopped." in page.text
    assert len(entries(keyed_scene, "kill.off")) == 1


async def test_a_viewer_cannot_act(keyed_scene: Scene, browse: Browse) -> None:
    http = browse(keyed_scene)
    await sign_in(http, key_with(keyed_scene, "viewer"))
    page = await press(http, "kill", on="true", scope="everything", reason="test")
    assert "Nothing was changed. This needs the role operator" in page.text
    assert entries(keyed_scene, "kill.on") == []


@pytest.mark.parametrize(
    ("act", "fields", "said"),
    [
        ("kill", {"on": "true", "scope": "everything", "reason": " "}, "Type a reason"),
        ("kill", {"on": "true", "scope": "nowhere", "reason": "test"}, "allowed: everything, or route:NAME"),
        ("policy-rollback", {"expect": "one", "to": "1", "reason": "test"}, "allowed: a whole number"),
        ("head", {"head": "none at all", "reason": "test"}, "installed: mine@1"),
        ("rollout", {"rollout_id": "none", "command": "start", "reason": "test"}, "there is no rollout"),
    ],
)
async def test_errors_are_shown_on_the_page(
    open_scene: Scene, browse: Browse, act: str, fields: dict[str, str], said: str
) -> None:
    page = await press(browse(open_scene), act, **fields)
    assert "Nothing was changed." in page.text
    assert said in page.text


async def test_an_unknown_act_is_not_found(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    sent = await http.post("/console/act/everything", data={"csrf": token_of(await http.get("/console"))})
    assert (sent.status_code, "There is no act" in sent.text) == (404, True)


async def test_a_form_without_optional_fields_succeeds(open_scene: Scene, browse: Browse) -> None:
    page = await press(browse(open_scene), "kill", on="true", reason="all of it")
    assert "speculation is stopped." in page.text
    assert len(entries(open_scene, "kill.on")) == 1
