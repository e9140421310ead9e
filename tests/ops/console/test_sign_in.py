"""Signing in with an API key: who may, for how long, and what a page of another site cannot do."""

from collections.abc import Callable

import httpx2
import pytest

from prolepsis.control.audit import chain
from prolepsis.control.web.routes import Route
from prolepsis.ops.console.pages import HEADERS
from tests.ops.console.browser import press, sign_in, token_of
from tests.ops.console.scene import Scene, key_with

Browse = Callable[[Scene], httpx2.AsyncClient]
OPEN_TO_ALL = {"/console/sign-in", "/console/static/{name}"}


def console_routes(site: Scene) -> list[tuple[str, str]]:
    routes = [route for route in site.app.routes if isinstance(route, Route) and route.path.startswith("/console")]
    return [(method, route.path) for route in routes for method in route.methods or () if route.path not in OPEN_TO_ALL]


async def test_every_page_and_act_sends_strangers_to_the_form(keyed_scene: Scene, browse: Browse) -> None:
    http = browse(keyed_scene)
    for method, path in console_routes(keyed_scene):
        reply = await http.request(method, path.replace("{", "").replace("}", ""))
        assert reply.status_code == 303, (method, path)
        assert reply.headers["location"].startswith("/console/sign-in?next="), (method, path)


async def test_a_key_opens_a_session_for_the_page_that_was_asked_for(keyed_scene: Scene, browse: Browse) -> None:
    http = browse(keyed_scene)
    reply = await sign_in(http, key_with(keyed_scene, "operator"))
    assert (reply.status_code, reply.headers["location"]) == (303, "/console/kill")
    cookie = reply.headers["set-cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/console"))
    assert "Secure" not in cookie
    assert (await http.get("/console")).status_code == 200
    assert (await http.get("/admin/kill")).status_code == 401  # the cookie counts for pages only


@pytest.mark.parametrize("key", ["", "made up", "plps_0123456789ab_" + "A" * 43])
async def test_a_wrong_key_opens_nothing_and_is_counted(keyed_scene: Scene, browse: Browse, key: str) -> None:
    http = browse(keyed_scene)
    reply = await sign_in(http, key)
    assert (reply.status_code, "set-cookie" in reply.headers) == (401, False)
    assert "The API key is not valid here." in reply.text
    metrics = await http.get("/metrics", headers={"authorization": f"Bearer {key_with(keyed_scene, 'viewer')}"})
    assert 'reason="not_authenticated"' in metrics.text


async def test_a_key_of_a_client_sees_no_page(keyed_scene: Scene, browse: Browse) -> None:
    reply = await sign_in(browse(keyed_scene), key_with(keyed_scene, "client"))
    assert reply.status_code == 403
    assert "This needs the role auditor or operator or viewer" in reply.text


async def test_a_revoked_key_ends_its_sessions(keyed_scene: Scene, browse: Browse) -> None:
    http, key = browse(keyed_scene), key_with(keyed_scene, "viewer")
    await sign_in(http, key)
    assert (await http.get("/console")).status_code == 200
    keyed_scene.keys.remove(key.split("_")[1])
    reply = await http.get("/console")
    assert (reply.status_code, reply.headers["location"]) == (303, "/console/sign-in?next=/console&ended=1")
    update = await http.get("/console", headers={"hx-request": "true"})
    assert update.headers["hx-redirect"] == "/console/sign-in?next=/console"


async def test_signing_in_and_out_is_in_the_audit_log(keyed_scene: Scene, browse: Browse) -> None:
    http, key = browse(keyed_scene), key_with(keyed_scene, "viewer")
    await sign_in(http, key)
    await http.post("/console/sign-out", data={"csrf": token_of(await http.get("/console"))})
    assert (await http.get("/console")).status_code == 303
    assert keyed_scene.store.writer.flush(20.0)
    with keyed_scene.store.database.read() as connection:
        entries = [entry for entry in chain.entries(connection) if entry.action.startswith("console.")]
    assert [entry.action for entry in entries] == ["console.signed_in", "console.signed_out"]
    assert {entry.details.actor for entry in entries if entry.details} == {key.split("_")[1]}


@pytest.mark.parametrize(
    "following", ["https://evil.example/console", "//evil.example/console", "/v1/models", "/consolex"]
)
async def test_signing_in_leads_to_no_other_place(keyed_scene: Scene, browse: Browse, following: str) -> None:
    fields = {"key": key_with(keyed_scene, "viewer"), "next": following}
    reply = await browse(keyed_scene).post("/console/sign-in", data=fields)
    assert reply.headers["location"] == "/console"


async def test_without_keys_this_machine_is_the_developer_and_others_are_refused(
    open_scene: Scene, browse: Browse
) -> None:
    http = browse(open_scene)
    page = await http.get("/console")
    assert (page.status_code, "developer" in page.text) == (200, True)
    assert (await http.get("/console/sign-in")).headers["location"] == "/console"
    assert (await http.get("/console", headers={"host": "evil.example"})).status_code == 403


async def test_a_form_without_the_token_or_of_another_site_changes_nothing(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    fields = {"on": "true", "scope": "everything", "reason": "test", "csrf": "guessed"}
    assert (await http.post("/console/act/kill", data=fields)).status_code == 403
    assert (await http.post("/console/act/kill", data={**fields, "csrf": "guéssed"})).status_code == 403
    fields["csrf"] = token_of(await http.get("/console"))
    for origin in ("http://localhost:9999", "null"):
        foreign = await http.post("/console/act/kill", data=fields, headers={"origin": origin})
        assert foreign.status_code == 403
    assert not (await http.get("/admin/kill")).json()["on"]
    assert "speculation is stopped" in (await press(http, "kill", on="true", scope="everything", reason="test")).text


async def test_every_page_has_the_headers_that_keep_foreign_content_out(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    for page in ("/console", "/console/kill"):
        reply = await http.get(page)
        assert {name: reply.headers[name] for name in HEADERS} == HEADERS
        assert "<style" not in reply.text
        assert " style=" not in reply.text
        assert all("src=" in tag for tag in reply.text.split("<script")[1:])
