"""Figures by traffic class, as requests end."""

from collections.abc import Callable

import httpx

from tests.ops.console.scene import CHAT, Scene


async def test_requests_count_for_their_traffic_class(
    open_scene: Scene, browse: Callable[[Scene], httpx.AsyncClient]
) -> None:
    http = browse(open_scene)
    for path, asked in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("/v1/completions", {"prompt": "Hi"}),
    ):
        assert (await http.post(path, json={"model": "tiny", "max_tokens": 64, **asked})).status_code == 200
    reply = (await http.get("/admin/traffic")).json()
    chat, completions = reply["classes"]
    assert (chat["traffic_class"], chat["num_requests"], chat["modes"]) == (CHAT, 2, {"on": 2})
    assert chat["acceptance_rate"] == 14 / 22
    assert chat["proposers"]["suffix"]["per_position"] == [[6, 6], [6, 4], [4, 2]]
    assert 0.0 < chat["saved"] < 1.0
    assert completions["reasons"] == {"rule_off": 1}
    assert completions["acceptance_rate"] is None
    assert sum(span["num_requests"] for span in reply["spans"]) == 3
