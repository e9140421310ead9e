"""The last requests, with all that a person asks about one of them."""

from collections.abc import Callable
from dataclasses import replace

import httpx2
import pytest

from prolepsis.control.correctness.evidence import AnswerDiff
from prolepsis.control.correctness.runtime import MAX_MISMATCHES, ReplayMismatch
from prolepsis.control.store.store import unrecorded
from prolepsis.control.traffic.recent import MAX_LISTED_ROUNDS, MAX_RECENT, RecentFeature
from prolepsis.core.ended import Keep, RequestAbout, RequestEnded
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.rounds import MAX_ROUNDS
from tests.ops.console.scene import Scene, key_with

ABOUT = RequestAbout(answer_id="a", tenant="acme", key_id="", tier="standard", route="/v1/completions", model="tiny")
CHAT = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


def test_rounds_of_every_request_are_kept() -> None:
    feature, request = RecentFeature(unrecorded()), GenerateRequest("a", (1, 2), SamplingParams())
    assert {feature.keeps(ABOUT, request) for _ in range(100)} == {Keep.ROUNDS}


async def test_no_more_requests_than_the_bound_are_kept(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    [feature] = [one for one in open_scene.app.state.features if isinstance(one, RecentFeature)]
    [shown] = (await http.get("/admin/requests")).json()["requests"]
    assert len(shown["rounds"]) == 6
    feature.requests.extend(list(feature.requests) * MAX_RECENT)
    assert len(feature.requests) == MAX_RECENT


async def test_a_reply_has_a_bound_and_says_which_requests_come_without_rounds(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    await http.post("/v1/chat/completions", json=CHAT)
    [feature] = [one for one in open_scene.app.state.features if isinstance(one, RecentFeature)]
    [served] = feature.requests
    longest = replace(served, rounds=(served.rounds * MAX_ROUNDS)[:MAX_ROUNDS])
    feature.requests.extend([longest] * MAX_RECENT)
    all_of_them = await http.get("/admin/requests", params={"last": MAX_RECENT})
    one_name = await http.get(f"/admin/requests/{served.record['answer_id']}")
    num_whole = MAX_LISTED_ROUNDS // MAX_ROUNDS
    for reply in (all_of_them, one_name):
        shown = reply.json()
        assert len(shown["requests"]) == MAX_RECENT
        assert [len(one["rounds"]) for one in shown["requests"]] == [MAX_ROUNDS] * num_whole + [0] * (
            MAX_RECENT - num_whole
        )
        assert shown["num_without_rounds"] == MAX_RECENT - num_whole
        assert len(reply.content) < 1_500_000
    few = (await http.get("/admin/requests", params={"last": num_whole})).json()
    assert few["num_without_rounds"] == 0


MISMATCH = ReplayMismatch(
    **{"sample": 0, "position": 1, "kind": "near_tie", "margin": 0.1, "tolerance": 0.2, "at": 1.0, "route": "r"},
    **{"request_id": "a", "rule": None, "policy_version": None, "arm": None, "mode": "on", "reason": "speculating"},
    **{"plan_version": 1, "similarity": 0.25},
)  # type: ignore[arg-type]
DIFF = AnswerDiff("it is ", "blue", "clear", (1, 2), (3,))


async def mismatched(http: httpx2.AsyncClient, scene: Scene, key: str = "") -> RecentFeature:
    """Serve a request whose replay then has other tokens."""
    [feature] = [one for one in scene.app.state.features if isinstance(one, RecentFeature)]
    ended = list[RequestEnded]()
    hear, feature.on_request_end = feature.on_request_end, ended.append  # type: ignore[method-assign]
    reply = await http.post("/v1/chat/completions", json=CHAT, headers={"authorization": f"Bearer {key}"})
    assert reply.status_code == 200, reply.text
    hear(ended[0])
    feature.on_request_end = hear  # type: ignore[method-assign]
    feature.on_mismatch(ended[0], 0, MISMATCH, DIFF)
    return feature


async def test_texts_of_a_mismatch_are_for_auditors(
    keyed_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(keyed_scene)
    await mismatched(http, keyed_scene, key_with(keyed_scene, "client"))
    for role, diff in (("operator", None), ("auditor", "blue"), ("admin", "blue")):
        bearer = {"authorization": f"Bearer {key_with(keyed_scene, role)}"}  # type: ignore[arg-type]
        reply = await http.get("/admin/requests", params={"only": "mismatched"}, headers=bearer)
        [example] = reply.json()["requests"]
        assert (example["diff"] and example["diff"]["recorded"], example["mismatch"]["similarity"]) == (diff, 0.25)
        path = f"/admin/requests/{example['record']['request_id']}"
        [one] = (await http.get(path, headers=bearer)).json()["requests"]
        assert (one["diff"], one["mismatch"]) == (example["diff"], example["mismatch"]), role


async def test_a_mismatch_stays_when_its_request_is_none_of_the_last(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    feature = await mismatched(http, open_scene)
    [example] = feature.ordered("newest", 10, "mismatched")
    [last] = feature.requests
    assert example.record["ended_at"] == pytest.approx(last.record["ended_at"], abs=5.0)
    feature.requests.clear()
    assert feature.named({example.record["request_id"]}) == [example]
    feature.requests.extend([replace(last, record={**last.record, "request_id": "b"}), last])
    assert feature.named({last.record["answer_id"]}) == [feature.requests[0], example]
    assert feature.found["mismatched"].maxlen == MAX_MISMATCHES


async def test_pages_list_mismatches_and_show_where_answers_part(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    feature = await mismatched(http, open_scene)
    name = feature.requests[0].record["request_id"]
    page = (await http.get("/console/requests?only=mismatched")).text
    assert (f'href="/console/requests/{name}"' in page, "near tie" in page) == (True, True)
    assert "No such request has ended" in (await http.get("/console/requests?only=violated")).text
    page = (await http.get(f"/console/requests/{name}")).text
    for shown in ("from output token 1 on", "blue", "clear", "1 2", "0.25"):
        assert shown in page, shown
    feature.found["mismatched"].append(replace(feature.found["mismatched"].pop(), diff=None, stopped_by=["secrets"]))
    page = (await http.get(f"/console/requests/{name}")).text
    assert ("Texts are for auditors" in page, "ended by secrets" in page) == (True, True)
