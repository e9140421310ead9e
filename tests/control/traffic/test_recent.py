"""The last requests, with all that a person asks about one of them."""

import time
from collections.abc import Callable
from dataclasses import replace

import httpx2
import pytest
from pydantic import TypeAdapter

from prolepsis.control.correctness.evidence import AnswerDiff
from prolepsis.control.correctness.runtime import ReplayMismatch
from prolepsis.control.store.store import unrecorded
from prolepsis.control.traffic.recent import MAX_LISTED_ROUNDS, MAX_RECENT, RecentFeature, RecentReply
from prolepsis.control.web.caller import Role
from prolepsis.core.ended import Keep, RequestAbout
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.rounds import MAX_ROUNDS
from tests.ops.console.scene import Scene, key_with
from tests.ops.tracing.ended import prompt_ended, request_ended

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
    sample=0,
    position=1,
    kind="near_tie",
    margin=0.1,
    tolerance=0.2,
    at=1.0,
    request_id="r0",
    route="/v1/completions",
    rule=None,
    policy_version=None,
    arm=None,
    mode="on",
    reason="speculating",
    plan_version=1,
    similarity=0.25,
)
DIFF = AnswerDiff("it is ", "blue", "clear", (11, 12), (13,))


def mismatched(scene: Scene) -> RecentFeature:
    """Let a request end whose replay then has other tokens."""
    [feature] = [one for one in scene.app.state.features if isinstance(one, RecentFeature)]
    ended = replace(request_ended(replace(prompt_ended("r0"), stopped_by=("secrets",))), ended_at=time.monotonic())
    feature.on_request_end(ended)
    feature.on_mismatch(ended, 0, MISMATCH, DIFF)
    return feature


async def test_texts_of_a_mismatch_are_for_auditors(
    keyed_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(keyed_scene)
    mismatched(keyed_scene)
    shown: list[tuple[Role, AnswerDiff | None]] = [("operator", None), ("auditor", DIFF), ("admin", DIFF)]
    for role, diff in shown:
        bearer = {"authorization": f"Bearer {key_with(keyed_scene, role)}"}
        for path in ("/admin/requests?only=mismatched", "/admin/requests/r0"):
            reply = await http.get(path, headers=bearer)
            [example] = TypeAdapter(RecentReply).validate_json(reply.content).requests
            assert (example.diff, example.mismatch) == (diff, MISMATCH), (role, path)


def test_a_mismatch_stays_when_its_request_is_none_of_the_last(open_scene: Scene) -> None:
    feature = mismatched(open_scene)
    [example], [last] = feature.ordered("newest", 10, "mismatched"), feature.requests
    assert example.record["ended_at"] == pytest.approx(last.record["ended_at"], abs=5.0)
    later = replace(last, record={**last.record, "request_id": "r1"})
    feature.requests.append(later)
    assert feature.named({last.record["answer_id"]}) == [example, later], "each once, with all that is known"
    feature.requests.clear()
    assert feature.named({"r0"}) == [example]
    assert feature.ordered("newest", 10, "violated") == [last]


async def test_pages_list_mismatches_and_show_where_answers_part(
    open_scene: Scene, browse: Callable[[Scene], httpx2.AsyncClient]
) -> None:
    http = browse(open_scene)
    assert "No such request has ended" in (await http.get("/console/requests?only=violated")).text
    feature = mismatched(open_scene)
    for query, word in (("only=mismatched", "near tie"), ("only=violated", "secrets")):
        page = (await http.get(f"/console/requests?{query}")).text
        assert ('href="/console/requests/r0"' in page, word in page) == (True, True), query
    page = (await http.get("/console/requests/r0")).text
    for text in ("from output token 1 on", "similarity 0.25", "blue", "clear", "11 12", "ended by secrets"):
        assert text in page, text
    feature.found["mismatched"].append(replace(feature.found["mismatched"].pop(), diff=None))
    page = (await http.get("/console/requests/r0")).text
    assert ("Texts are for auditors" in page, "blue" in page) == (True, False)
