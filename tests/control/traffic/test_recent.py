"""The last requests, with all that a person asks about one of them."""

from collections.abc import Callable
from dataclasses import replace

import httpx2

from prolepsis.control.store.store import unrecorded
from prolepsis.control.traffic.recent import MAX_LISTED_ROUNDS, MAX_RECENT, RecentFeature
from prolepsis.core.ended import Keep, RequestAbout
from prolepsis.core.requests import GenerateRequest, SamplingParams
from prolepsis.core.rounds import MAX_ROUNDS
from tests.ops.console.scene import Scene

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
