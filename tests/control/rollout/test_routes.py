"""/admin/rollouts: who may do what, what is said, and what the document promises."""

from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from prolepsis.control.rollout.routes import RolloutsReply
from prolepsis.control.rollout.runtime import RolloutView, audit_event
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.front.keys import Keys
from tests.server.documents import read
from tests.world.site import Site

POLICY = """
default:
  mode: on
  rollout: {stages: [50]}
  guardrails: [{name: errors, metric: error_rate, margin: 0.1}]
"""


@pytest.fixture
def connect(tmp_path: Path) -> Any:
    file = KeyFile(tmp_path / "keys.json")
    keys = Keys(file, clock=count().__next__)  # it looks at the file each time
    site = Site(folder=tmp_path, policy=POLICY, keys=keys)

    def client(*roles: str) -> httpx2.AsyncClient:
        record, key = new_key("acme", roles=roles)
        file.add(record)
        return site.client(**{"authorization": f"Bearer {key}", "x-key": record.id})

    return client


@pytest.mark.parametrize(
    ("role", "reads", "acts"),
    [("client", 403, 403), ("viewer", 200, 403), ("auditor", 200, 403), ("operator", 200, 200), ("admin", 200, 200)],
)
async def test_roles(connect: Any, role: str, reads: int, acts: int) -> None:
    http = connect(role)
    assert (await http.get("/admin/rollouts")).status_code == reads
    name = (await connect("viewer").get("/admin/rollouts")).json()["rollouts"][0]["id"]
    assert (await http.get(f"/admin/rollouts/{name}")).status_code == reads
    assert (await http.post(f"/admin/rollouts/{name}/start", json={})).status_code == acts


async def test_a_change_is_on_record_with_who_and_why(connect: Any) -> None:
    http = connect("operator", "client")
    listed = read(RolloutsReply, (await http.get("/admin/rollouts")).json())
    [one] = listed.rollouts
    assert (one.rule, one.phase, one.judgement) == ("default", "off", None)
    started = await http.post(f"/admin/rollouts/{one.id}/start", json={"reason": "ticket 7"})
    assert read(RolloutView, started.json()).phase == "running"
    for _ in range(5):
        await http.post("/v1/completions", json={"model": "tiny", "prompt": "Hi"})
    shown = read(RolloutView, (await http.get(f"/admin/rollouts/{one.id}")).json())
    [event] = shown.events or []
    assert (event.kind, event.reason) == ("started", f"by {http.headers['x-key']}: ticket 7")
    assert (event.by, audit_event(event).actor) == (http.headers["x-key"], http.headers["x-key"])
    assert event.policy_version == shown.policy_version
    assert shown.judgement is not None
    assert (shown.num_canary + shown.num_control, shown.judgement.outcome) == (5, "inconclusive")
    [guardrail] = shown.judgement.guardrails
    assert guardrail.num_canary + guardrail.num_control == 5


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/promote", {}, 409, "rollout_conflict"),
        ("/destroy", {}, 404, "unknown_command"),
        ("/start", {"reason": "x" * 501}, 400, None),
        ("/start", {"why": "so"}, 400, None),
        ("/start", {"force": True}, 400, "invalid_value"),
    ],
)
async def test_what_cannot_be_done_is_refused(
    connect: Any, path: str, body: Any, status: int, code: str | None
) -> None:
    http = connect("operator")
    name = (await http.get("/admin/rollouts")).json()["rollouts"][0]["id"]
    reply = await http.post(f"/admin/rollouts/{name}{path}", json=body)
    assert reply.status_code == status, reply.text
    assert code is None or reply.json()["error"]["code"] == code


async def test_promoting_without_evidence_says_what_is_missing_and_takes_force(connect: Any) -> None:
    http = connect("operator", "client")
    name = (await http.get("/admin/rollouts")).json()["rollouts"][0]["id"]
    await http.post(f"/admin/rollouts/{name}/start", json={})
    refused = await http.post(f"/admin/rollouts/{name}/promote", json={"reason": "it will do"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (409, "force")
    message = refused.json()["error"]["message"]
    assert "errors has 0 of 20 requests of the canary and 0 of 20 requests of the control" in message
    forced = await http.post(f"/admin/rollouts/{name}/promote", json={"reason": "it will do", "force": True})
    assert read(RolloutView, forced.json()).phase == "on"
    [*_, event] = read(RolloutView, (await http.get(f"/admin/rollouts/{name}")).json()).events or []
    assert event.reason == f"by {http.headers['x-key']}, by force: it will do"
    assert event.by == http.headers["x-key"]


async def test_without_a_policy_there_are_none() -> None:
    http = Site().http
    assert (await http.get("/admin/rollouts")).json() == {"rollouts": []}
    assert (await http.post("/admin/rollouts/code@1/start", json={})).status_code == 404
