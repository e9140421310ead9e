"""A server ends while it runs a response in the background: its client learns how it ended, with every event once."""

import json
import signal
from typing import Any

import httpx2
import pytest

from prolepsis.control.store.tables import responses
from prolepsis.core.config import ServerConfig
from tests.control.store.databases import lapse
from tests.server_process import serve_fake, started
from tests.waiting import wait_for


def events_of(url: str, method: str, path: str, most: int = 10**6, **more: Any) -> list[dict[str, Any]]:
    """Return the first events of a stream."""
    found: list[dict[str, Any]] = []
    with httpx2.stream(method, f"{url}{path}", timeout=60, **more) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: "):
                found.append(json.loads(line.removeprefix("data: ")))
            if len(found) == most:
                break
    return found


@pytest.mark.parametrize(
    ("number", "kind"), [(signal.SIGKILL, "response.failed"), (signal.SIGTERM, "response.completed")]
)
def test_a_response_whose_server_ends_has_an_end(sqlite: str, number: signal.Signals, kind: str) -> None:
    """A killed server's fails when its lease has lapsed; one that stops in order lets it end."""
    config = ServerConfig(store=sqlite, replay_sample=0.0, response_retention_days=1)
    body = {"model": "tiny", "input": "Hi", "background": True, "stream": True}
    with started(serve_fake, config, None, 0.1) as (first, url):
        read = events_of(url, "POST", "/v1/responses", 5, json=body)
        first.send_signal(number)
        first.wait()
    lapse(sqlite, responses)
    path = f"/v1/responses/{read[0]['response']['id']}"
    with started(serve_fake, config, None, 0.0) as (_, url):
        wait_for(lambda: httpx2.get(f"{url}{path}").json()["status"] not in ("queued", "in_progress"))
        rest = events_of(url, "GET", f"{path}?stream=true&starting_after=4")
        assert [event["sequence_number"] for event in [*read, *rest]] == list(range(len(read) + len(rest)))
        assert rest[-1]["type"] == kind
        assert rest[-1]["response"] == httpx2.get(f"{url}{path}").json()
        if number == signal.SIGKILL:
            assert "server that ran this response has ended" in rest[-1]["response"]["error"]["message"]
