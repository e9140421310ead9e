"""A caller's latency target, by headers."""

from collections.abc import Callable

import httpx2
import pytest

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import LatencyTarget
from prolepsis.server.preparing.target import FIRST_TOKEN_MS, MS_PER_TOKEN, requested_target
from tests.server.fakes import FakeEngine

Connect = Callable[[FakeEngine], httpx2.AsyncClient]
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(
    ("headers", "target"),
    [
        ({}, LatencyTarget()),
        ({MS_PER_TOKEN: "12.5"}, LatencyTarget(12.5)),
        ({FIRST_TOKEN_MS: "300", MS_PER_TOKEN: "0.001"}, LatencyTarget(0.001, 300.0)),
    ],
)
def test_headers_state_it(headers: dict[str, str], target: LatencyTarget) -> None:
    assert requested_target(headers) == target


@pytest.mark.parametrize("given", ["", "0", "0.000", "-1", "soon", "nan", "inf", "1e3", "9999999", "1.2345", "١"])
@pytest.mark.parametrize("name", [FIRST_TOKEN_MS, MS_PER_TOKEN])
def test_nonsense_is_refused_by_name(name: str, given: str) -> None:
    with pytest.raises(InvalidParameter, match=r"allowed: 0\.001 to") as refused:
        requested_target({name: given})
    assert refused.value.param == name


async def test_the_engine_gets_it_and_a_client_hears_of_nonsense(client: Connect) -> None:
    engine = FakeEngine()
    http = client(engine)
    for route, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"model": "tiny", "prompt": "a"})):
        reply = await http.post(route, json=body, headers={MS_PER_TOKEN: "20", FIRST_TOKEN_MS: "60000"})
        assert reply.status_code == 200, reply.text
        target = engine.requests[-1].target
        assert target is not None
        assert (target.ms_per_token, 50_000 < (target.first_token_ms or 0.0) < 60_000) == (20.0, True)
    await http.post("/v1/chat/completions", json=CHAT)
    assert engine.requests[-1].target is None
    refused = await http.post("/v1/chat/completions", json=CHAT, headers={MS_PER_TOKEN: "fast"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, MS_PER_TOKEN)
