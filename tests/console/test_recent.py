"""The last requests, with all that a person asks about one of them."""

from collections.abc import Callable

import httpx

from prolepsis.console.recent import MAX_RECENT, RecentFeature
from prolepsis.core.ended import Keep, RequestAbout
from prolepsis.core.requests import GenerateRequest, SamplingParams
from tests.console.scene import Scene

ABOUT = RequestAbout(answer_id="a", tenant="acme", key_id="", tier="standard", route="/v1/completions", model="tiny")
CHAT = {"model": "tiny", "max_tokens": 64, "messages": [{"role": "user", "content": "Hi"}]}


def test_rounds_of_every_request_are_kept() -> None:
    feature, request = RecentFeature(), GenerateRequest("a", (1, 2), SamplingParams())
    assert {feature.keeps(ABOUT, request) for _ in range(100)} == {Keep.ROUNDS}


async def test_no_more_requests_than_the_bound_are_kept(
    open_scene: Scene, browse: Callable[[Scene], httpx.AsyncClient]
) -> None:
    http = browse(open_scene)
    assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
    [feature] = [one for one in open_scene.app.state.features if isinstance(one, RecentFeature)]
    [shown] = (await http.get("/admin/recent")).json()["requests"]
    assert len(shown["rounds"]) == 6
    feature.requests.extend(list(feature.requests) * MAX_RECENT)
    assert len(feature.requests) == MAX_RECENT
