"""Every page for every role, and what each shows of a server that has served."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from prolepsis.control.traffic.feature import TrafficFeature
from prolepsis.control.web.caller import Role
from prolepsis.core.ended import End, RequestEnded
from prolepsis.core.engine_client import EngineMember, PromptProgress
from prolepsis.ops.console.dashboards import DASHBOARDS
from prolepsis.ops.console.render import count
from prolepsis.server.status.service_health import LEAST_REQUESTS
from tests.core.telemetry.test_requests import ABOUT
from tests.ops.console.browser import press, sign_in, token_of
from tests.ops.console.scene import CHAT, POLICY, Scene, add_replica, key_with, scene
from tests.ops.console.test_alerts import FIRES
from tests.paths import ROOT

SHIPPED = ROOT / "src" / "prolepsis" / "ops" / "monitoring" / "dashboards"
Browse = Callable[[Scene], httpx2.AsyncClient]


async def serve(http: httpx2.AsyncClient, **headers: str) -> None:
    """Serve a chat that speculates and a completion that is plain."""
    for path, asked in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ):
        reply = await http.post(path, json={"model": "tiny", "max_tokens": 64, **asked}, headers=headers)
        assert reply.status_code == 200, reply.text


async def pages_of(http: httpx2.AsyncClient) -> list[str]:
    return re.findall(r'<li><a href="([^"]+)"', (await http.get("/console")).text)


async def test_the_navigation_names_the_pages_of_all_features_once(open_scene: Scene, browse: Browse) -> None:
    pages = await pages_of(browse(open_scene))
    assert len(set(pages)) == len(pages) == 16


@pytest.mark.parametrize("role", ["viewer", "operator", "auditor", "admin"])
async def test_every_page_shows_what_the_role_may_see(keyed_scene: Scene, browse: Browse, role: Role) -> None:
    http = browse(keyed_scene)
    await serve(http, authorization=f"Bearer {key_with(keyed_scene, 'client')}")
    await keyed_scene.tick()
    await sign_in(http, key_with(keyed_scene, role))
    for path in [*await pages_of(http), "/console/policy/edit", "/console/policy/explain"]:
        page = await http.get(path)
        assert page.status_code == 200, (path, page.text)
        assert 'role="alert"' not in page.text, path
        assert page.text.count('aria-current="page"') == 1, path
    audit, kill = (await http.get("/console/audit")).text, (await http.get("/console/kill")).text
    assert ("roles do not include this part" in audit) == (role in ("viewer", "operator"))
    assert ("Stop speculation</button>" in kill) == (role in ("operator", "admin"))


async def test_the_overview_says_the_verdict_first_then_how_to_stop(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await serve(http)
    page = (await http.get("/console")).text
    shown = ["Verdict by rule", "Needs attention", "Kill switch", "Last five minutes", "Recent changes", "What serves"]
    caches = "Prompts from the prefix cache, by client", "Answers by caches and by length, in the last hour"
    assert [title for title in re.findall(r"<h2[^>]*>([^<]+)<", page) if title not in caches] == shown
    verdict = page.split("Verdict by rule")[1].split("Needs attention")[0]
    assert "<code>prolepsis pilot start</code> draws some" in verdict
    assert "Changed by a rollout of the rule." in verdict
    assert "1.47 tokens a pass" in page


async def test_before_any_traffic_the_overview_says_what_will_be_there(open_scene: Scene, browse: Browse) -> None:
    """It showed eight dashes, and charts whose scale ended at 0.000000001."""
    http = browse(open_scene)
    open_scene.engine.reported = replace(open_scene.engine.reported, num_running=0, num_waiting=0)
    await open_scene.tick()
    page = (await http.get("/console")).text
    assert "No request has come since the server started. After the first: its speed and acceptance" in page
    assert "after 20 on each side of a pilot: whether it pays" in page
    for absent in ('<div class="tile">', "Scale 0 to", "<dd>–"):
        assert absent not in page, absent
    await serve(http)
    page = (await http.get("/console")).text
    assert "No request has come" not in page
    assert '<div class="tile">' in page


async def test_what_is_in_force_is_not_offered(open_scene: Scene, browse: Browse) -> None:
    http, everything = browse(open_scene), {"scope": "everything", "reason": "test"}
    await open_scene.tick()
    shown = (await http.get("/console/proposers")).text
    assert "Stop suffix…" in shown
    head = shown.split('name="head" value="mine@2"')[1].split("</form>")[0]
    assert "candidate_head" in head
    assert '<option value="draft_head">' not in head
    assert '<option value="draft_head">' in shown.split('name="head" value="mine@1"')[1].split("</form>")[0]
    fields = {"proposer": "suffix", "traffic_class": CHAT, "state": "forced_open"}
    shown = (await press(http, "breaker", "/console/proposers", reason="odd", **fields)).text
    breaker = shown.split('name="proposer" value="suffix"')[1].split("</form>")[0]
    assert re.findall(r'<option value="(\w+)">', breaker) == ["forced_closed", "metrics_only", "closed"]
    stopped = (await press(http, "kill", on="true", **everything)).text
    assert "by developer: test." in " ".join(re.sub(r"<[^>]+>", "", stopped).split())
    assert "Resume speculation</button>" in stopped
    assert "Stop speculation</button>" not in stopped
    assert "Stop suffix…" not in (await http.get("/console/proposers")).text
    scopes = (await http.get("/console/kill")).text.split('<datalist id="scopes">')[1].split("</datalist>")[0]
    assert '<option value="everything">' not in scopes
    assert '<option value="proposer:suffix">' in scopes
    resumed = (await press(http, "kill", on="false", **everything)).text
    assert "Stop speculation</button>" in resumed
    page = await http.get("/console/policy/edit")
    checked = await http.post("/console/policy/edit", data={"csrf": token_of(page), "text": POLICY})
    assert "This is the policy in use." in checked.text
    assert "Apply</button>" not in checked.text


async def test_the_overview_says_what_needs_a_person(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await serve(http)
    page = (await http.get("/console")).text
    assert "Nothing." in page
    assert "63.6\u202f%" in page
    assert "<dd>drafts cannot pay on this model here beyond 24 at once</dd>" in page
    assert "not known yet: no requests are drawn to be compared with plain decoding" in page
    await press(http, "kill", on="true", scope="everything", reason="test")
    page = (await http.get("/console")).text
    assert "Speculation is stopped everywhere" in page
    assert "off: the kill switch stops it" in page


async def test_dashboards_are_linked_where_grafana_is_known_and_named_elsewhere(
    open_scene: Scene, browse: Browse, tmp_path: Path
) -> None:
    shipped = [json.loads(file.read_text())["uid"] for file in SHIPPED.glob("*.json")]
    assert sorted(shipped) == sorted(f"prolepsis-{name}" for name in DASHBOARDS)
    named = (await browse(open_scene).get("/console/dashboards")).text
    assert "<code>debug.json</code>" in named
    assert "<code>grafana_url</code>" in named
    (tmp_path / "linked").mkdir()
    with scene(tmp_path / "linked", grafana_url="https://grafana.example.org/") as linked:
        page = (await browse(linked).get("/console/dashboards")).text
    assert all(f'<a href="https://grafana.example.org/d/{uid}">' in page for uid in shipped)


async def test_a_rollout_is_started_promoted_held_and_rolled_back(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    [rollout] = (await http.get("/admin/rollouts")).json()["rollouts"]
    page = f"/console/rollouts/{rollout['id']}"
    assert page in (await http.get("/console/rollouts")).text
    fields = {"rollout_id": rollout["id"]}
    assert "running" in (await press(http, "rollout", page, command="start", reason="try it", **fields)).text
    told = await press(http, "rollout", page, command="promote", reason="now", **fields)
    assert "acceptance has 0 of 20 requests of the canary" in told.text.split("What a judgement waits for")[1]
    assert "Nothing was changed." in told.text
    assert open_scene.store.writer.flush(20.0)
    entry = (await http.get(f"/console/audit/{rollout['id']}")).text
    assert f'<a href="{page}">{rollout["id"]}</a>' in entry
    assert f'<a href="/console/audit/{quote(rollout["id"])}">Its last audit entry</a>' in told.text
    forced = await press(http, "rollout", page, command="promote", force="true", reason="now", **fields)
    assert "promote: done." in forced.text
    await press(http, "rollout", page, command="hold", reason="lunch", **fields)
    rolled_back = (await press(http, "rollout", page, command="rollback", reason="enough", **fields)).text
    assert "rolled back" in rolled_back
    assert "by the developer: enough" in rolled_back


async def test_an_edit_is_checked_compared_applied_and_undone(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    page = await http.get("/console/policy/edit")
    edited = POLICY.replace("use: chat", "use: code")
    fields = {"csrf": token_of(page), "text": edited}
    checked = await http.post("/console/policy/edit", data=fields)
    assert "It can be used" in checked.text
    assert "num_speculative_tokens" in checked.text.split("What requests would get")[1]
    wrong = await http.post("/console/policy/edit", data={**fields, "text": "rules: [{name: x}]"})
    assert "It cannot be used" in wrong.text
    applied = await press(http, "policy", "/console/policy/edit", text=edited, expect="1", reason="longer drafts")
    assert "Version 2 of the policy is in use." in applied.text
    late = await press(http, "policy", "/console/policy/edit", text=POLICY, expect="1", reason="too late")
    assert "not version 1: review it and decide again" in late.text
    assert "use: chat" in late.text, "the text is not lost"
    version = (await http.get("/console/policy/versions/2")).text
    assert "<ins>+    use: code</ins>" in version
    assert "Use version 1 in place of 2</button>" in (await http.get("/console/policy/versions/1")).text
    undone = await press(http, "policy-rollback", "/console/policy", to="1", expect="2", reason="shorter again")
    first = (await http.get("/console/policy/versions/1")).text
    assert "in use, as version 3" in first
    assert "in place of" not in first
    assert "rolled back to version 1: shorter again" in undone.text


async def test_a_pasted_request_is_explained(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    token = token_of(await http.get("/console/policy/explain"))
    request = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]})
    fields = {"csrf": token, "request": request, "roles": "client, viewer", "flags": "new-drafts"}
    page = await http.post("/console/policy/explain", data=fields)
    assert "Mode on" in page.text
    assert "by rule chat" in page.text
    page = await http.post(
        "/console/policy/explain", data={**fields, "tenant": "bank", "headers": "X-Spec-Mode: always"}
    )
    assert "Refused" in page.text
    page = await http.post("/console/policy/explain", data={**fields, "request": "{"})
    assert "The request is not valid JSON" in page.text


async def test_heads_are_swapped_and_breakers_set(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await open_scene.tick()
    page = (await http.get("/console/proposers")).text
    assert "trained for big" in page
    row = page.split('id="proposer-draft_head"')[1].split("</tr>")[0]
    assert "900 300 33.3 % of asked" in " ".join(re.sub(r"<[^>]+>", " ", row).split())
    swapped = await press(http, "head", head="mine@1", proposer="draft_head", reason="compare")
    assert "draft_head drafts with mine@1 now. 1.00 tokens a pass" in swapped.text
    worse = "draft_head drafts with mine@1, which brings next to nothing or much less than the one before: 1.00 tokens"
    for path in ("/console", "/console/proposers"):
        assert worse in (await http.get(path)).text, path
    fields = {"proposer": "suffix", "traffic_class": CHAT}
    assert "Type a reason" in (await press(http, "breaker", state="forced_open", **fields)).text
    await press(http, "breaker", state="forced_open", reason="odd drafts", **fields)
    assert "forced open" in (await http.get("/console/proposers")).text
    told = (
        "Breaker of suffix in rule chat (chat-completions, standard, free, short) is forced open: an operator set it."
    )
    assert told in (await http.get("/console")).text
    reset = await press(http, "drift", "/console/quality", **fields)
    assert "starts again" in reset.text


async def test_a_request_is_shown_with_its_rounds_and_its_audit_entry(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await serve(http)
    assert open_scene.store.writer.flush(20.0)
    [plain, chat] = (await http.get("/admin/requests")).json()["requests"]
    name = chat["record"]["answer_id"]
    found = await http.get(f"/console/requests?name={name}")
    page = (await http.get(found.headers["location"])).text
    assert page.count('<li><span class="sub">suffix') == 2
    assert "2 accepted, 2 rejected, one recovered" in page
    assert "4 accepted, 0 rejected, one bonus" in page
    assert "#rule-chat" in page
    assert "EUR" in page
    entry = page.split('<a href="/console/audit/')[1].split('"')[0]
    assert "request.served" in (await http.get(f"/console/audit/{entry}")).text
    replayed = await press(http, "replay", f"/console/audit/{entry}", entry=entry)
    assert f"Entry {entry} was decoded again: match." in replayed.text
    page = (await http.get(f"/console/requests/{plain['record']['request_id']}")).text
    assert "the policy&#39;s rule says off" in page
    assert (await http.get("/console/requests/unknown")).status_code == 404
    for order in ("slowest", "least_accepted"):
        assert chat["record"]["request_id"] in (await http.get(f"/console/requests?order={order}")).text


async def test_the_audit_log_is_filtered_and_paged(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    for number in range(60):
        await http.put("/admin/kill", json={"on": number % 2 == 0, "reason": f"act {number}"})
    assert open_scene.store.writer.flush(20.0)
    newest = (await http.get("/console/audit")).text
    link = re.search(r"/console/audit\?after=\d+&amp;last=\d+", newest)
    assert link is not None, newest
    earlier = (await http.get(link[0].replace("&amp;", "&"))).text
    numbers = [int(number) for page in (newest, earlier) for number in re.findall(r'href="/console/audit/(\d+)"', page)]
    assert numbers == [*range(numbers[0], 0, -1)], "each entry once, the newest first"
    applied = (await http.get("/console/audit?action=policy.applied")).text
    assert len(re.findall(r'href="/console/audit/(\d+)"', applied)) == applied.count("<td>policy.applied</td>") == 1


async def test_changes_are_marked_listed_and_lead_to_their_entry_and_back(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    [feature] = [one for one in open_scene.app.state.features if isinstance(one, TrafficFeature)]
    for minutes in (3, 2, 1):
        feature.now = partial(float, time.time() - 60.0 * minutes)
        await serve(http)
    feature.now = time.time
    await press(http, "head", head="mine@1", proposer="draft_head", reason="compare")
    assert open_scene.store.writer.flush(20.0)
    entry = (await http.get("/admin/audit?last=1&changes=true")).json()["changes"]["changes"][0]
    assert (entry["action"], entry["reason"]) == ("head.swapped", "compare")
    for path in ("/console", "/console/proposers", "/console/quality"):
        page = (await http.get(path)).text
        assert f'<a href="/console/audit/{entry["seq"]}" aria-label="head.swapped, entry {entry["seq"]}">' in page, path
    assert '<path class="mark"' in (await http.get("/console")).text
    page = (await http.get(f"/console/audit/{entry['seq']}")).text
    assert '<a href="/console/proposers#heads">draft_head</a>' in page
    assert "head mine@2 → mine@1" in page
    assert (
        f'<a href="/console/audit/{entry["seq"]}">swapped in lately</a>' in (await http.get("/console/proposers")).text
    )


async def test_a_change_is_undone_from_its_entry_once(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await press(http, "head", head="mine@1", proposer="draft_head", reason="compare")
    edited = POLICY.replace("use: chat", "use: code")
    await press(http, "policy", "/console/policy/edit", text=edited, expect="1", reason="longer drafts")
    assert open_scene.store.writer.flush(20.0)
    newest = (await http.get("/admin/audit?last=1&changes=true")).json()["changes"]["changes"]
    changes = {one["action"]: f"/console/audit/{one['seq']}" for one in reversed(newest)}
    swap, policy = changes["head.swapped"], changes["policy.applied"]
    assert "Put mine@2 back</button>" in (await http.get(swap)).text
    assert "/console/kill?scope=proposer%3Adraft_head" in (await http.get(swap)).text
    undone = await press(http, "head", swap, head="mine@2", proposer="draft_head", reason="worse")
    assert "no longer in effect" in undone.text
    assert "Put mine@2 back</button>" not in undone.text
    assert open_scene.engine.info.draft_head == "mine@2"
    assert "Use version 1 again</button>" in (await http.get(policy)).text
    assert '<a href="/console/policy/versions/2">version 2</a>' in (await http.get(policy)).text
    back = (await http.get("/console/policy/versions/2")).text.split('">Its audit entry')[0].rpartition('href="')[2]
    assert "policy.applied" in (await http.get(back)).text
    undone = await press(http, "policy-rollback", policy, to="1", expect="2", reason="worse")
    assert "version 3 is in use" in undone.text
    assert "again</button>" not in undone.text


async def test_parts_hidden_from_a_role_are_named(keyed_scene: Scene, browse: Browse) -> None:
    owner = browse(keyed_scene)
    await sign_in(owner, key_with(keyed_scene, "admin"))
    await press(owner, "head", head="mine@1", proposer="draft_head", reason="compare")
    assert keyed_scene.store.writer.flush(20.0)
    operator, auditor = browse(keyed_scene), browse(keyed_scene)
    await sign_in(operator, key_with(keyed_scene, "operator"))
    await sign_in(auditor, key_with(keyed_scene, "auditor"))
    shown = (await auditor.get("/console/quality")).text
    entry = re.search(r"/console/audit/\d+", shown)
    assert entry is not None
    page = (await auditor.get(entry[0])).text
    assert "your key needs the role operator" in page
    assert "back</button>" not in page
    for path in ("/console", "/console/proposers", "/console/quality"):
        hidden = (await operator.get(path)).text
        assert "it needs the role auditor" in hidden, path
        assert "head.swapped" not in hidden, path


async def test_an_engine_that_serves_without_a_part_needs_attention(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    open_scene.engine.reported = replace(open_scene.engine.reported, detail="plain pool: its /health does not answer")
    page = (await http.get("/console")).text
    assert "The engine serves without a part: plain pool: its /health does not answer" in page


async def test_needs_attention_names_alert_and_runbook(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    await open_scene.tick()
    await press(http, "breaker", state="forced_open", proposer="suffix", traffic_class=CHAT, reason="odd")
    feature_of(open_scene, "correctness")._similarities.extend([0.5] * 20)
    page = (await http.get("/console")).text
    assert 'Alert OutputsDissimilar:</span> <a href="/console/runbooks/mismatch">runbook</a>' in page
    assert 'Alert BreakerOpen:</span> <a href="/console/runbooks/breaker">runbook</a>' in page


def feature_of(scene: Scene, name: str) -> Any:
    return next(one for one in scene.app.state.features if one.name == name)


async def test_failures_and_latencies_are_on_the_overview(open_scene: Scene, browse: Browse) -> None:
    """It said "Nothing" while a page for failed requests fired."""
    http, traffic = browse(open_scene), feature_of(open_scene, "traffic")
    await serve(http)
    page = (await http.get("/console")).text
    assert "answers in time." in page
    assert "<dt>First token</dt>" in page
    ends: list[End] = ["failed", "expired"]
    ends += ["finished" for _ in range(98)]
    for end in ends:
        traffic.service.ended(RequestEnded(about=ABOUT, end=end, error=None, prompts=()), traffic.now())
    page = (await http.get("/console")).text
    assert "Nothing." in page, "one failure in a hundred is within what a page allows"
    assert "1 at their client's deadline" in page
    for _ in range(9):
        traffic.service.ended(RequestEnded(about=ABOUT, end="failed", error=None, prompts=()), traffic.now())
    page = (await http.get("/console")).text
    attention = page.split("Last five minutes")[0]
    assert " requests failed in the last five minutes." in attention
    assert 'Alert AvailabilityBudgetBurns:</span> <a href="/console/runbooks/availability">runbook</a>' in attention
    assert "Urgent" in attention
    assert "Nothing." not in attention


async def test_alerts_that_fire_are_on_the_overview(open_scene: Scene, browse: Browse) -> None:
    http, alerts = browse(open_scene), feature_of(open_scene, "alerts")
    assert "the setting <code>alertmanager</code>" in (await http.get("/console")).text
    others = {**FIRES, "labels": {"alertname": "DiskOfOthers", "severity": "page"}}
    reply = httpx2.Response(200, json=[FIRES, others])
    alerts._url, alerts._transport = "http://alertmanager:9093", httpx2.MockTransport(lambda _: reply)
    await alerts.tick()
    page = (await http.get("/console")).text
    assert "a:8000 cannot write its store (instance a:8000). It began" in page
    assert 'Alert StoreDown:</span> <a href="/console/runbooks/store">runbook</a>' in page
    assert "DiskOfOthers" not in page
    alerts._transport = httpx2.MockTransport(lambda _: httpx2.Response(503))
    await alerts.tick()
    assert "It is not known which alerts fire" in (await http.get("/console")).text


async def test_an_engine_that_is_not_ready_needs_attention(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    open_scene.engine.reported = replace(open_scene.engine.reported, ready=False, detail="a step lasts for 61 s")
    assert "The engine is not ready: a step lasts for 61 s." in (await http.get("/console")).text


async def test_a_server_whose_requests_fail_needs_attention(open_scene: Scene, browse: Browse) -> None:
    http, health = browse(open_scene), feature_of(open_scene, "service_health")
    for _ in range(LEAST_REQUESTS):
        health.on_request_end(RequestEnded(about=ABOUT, end="failed", error="engine_error", prompts=()))
    page = (await http.get("/console")).text
    failing = "8 of the last 8 requests failed, the last of them with engine_error"
    assert f"The server is not ready, so load balancers send it no requests: {failing}." in page
    assert f"Requests fail: {failing}" in page
    assert 'Alert RequestsFail:</span> <a href="/console/runbooks/availability">runbook</a>' in page


async def test_flags_are_shown_set_and_cleared(open_scene: Scene, browse: Browse) -> None:
    http = browse(open_scene)
    assert "No flag is set here." in (await http.get("/console/flags")).text
    page = await press(http, "flag", "/console/flags", flag="new-drafts", value="false", reason="slower today")
    assert "so it changes nothing; flags that are read: speculation.enabled" in page.text
    assert "Flag new-drafts is set." in page.text
    assert "slower today" in page.text
    refused = await press(http, "flag", "/console/flags", flag="new drafts", value="true", reason="try")
    assert "Nothing was changed." in refused.text
    assert open_scene.store.writer.flush(20.0)
    assert '<a href="/console/flags">new-drafts</a>' in (await http.get("/console/audit?action=flags.set")).text
    cleared = await press(http, "flag-remove", "/console/flags", flag="new-drafts", reason="fast again")
    assert "No flag is set here." in cleared.text


async def test_replicas_are_shown_with_the_engines_behind_them(open_scene: Scene, browse: Browse) -> None:
    http, client = browse(open_scene), open_scene.engine
    member = EngineMember(
        name="engine-7", exact_group="0a1b", ready=True, detail="", num_running=3, num_waiting=0, kv_usage=0.5
    )
    client.reported = replace(client.reported, members=(member,))
    page = (await http.get("/console/replicas")).text
    assert page.count("here yes") == 1
    engine = re.findall(r"<t[hd][^>]*>([^<]*)<", page.split("engine-7")[1])
    assert engine[-3:] == ["3", "0", "50%"], "running, waiting, pages in use"
    assert client.info.exact_group.digest in page


async def test_another_replica_leads_to_its_own_console(open_scene: Scene, browse: Browse) -> None:
    add_replica(open_scene, "other", open_scene.engine.info.exact_group)
    await open_scene.tick()
    page = (await browse(open_scene).get("/console/replicas")).text
    assert "http://other.example.org:8000/console" in re.findall('href="(http[^"]*)"', page)


async def test_the_overview_says_how_far_prompts_were_read(open_scene: Scene, browse: Browse) -> None:
    reading = (PromptProgress("r", 4096, 0, 7274),)
    open_scene.engine.reported = replace(open_scene.engine.reported, reading=reading)
    assert f"{count(4096)} of {count(7274)} tokens of a prompt read" in (await browse(open_scene).get("/console")).text
