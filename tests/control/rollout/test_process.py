"""The whole process: a rollout survives kill -9 in the store."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from prolepsis.core.config import ServerConfig
from tests.server_process import ServerProcess, serve_fake, started

POLICY = """
default:
  mode: on
  rollout: {stages: [10, 50]}
  guardrails: [{name: errors, metric: error_rate, margin: 0.1}]
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple[ServerProcess, str]]:
    config = ServerConfig(policy=folder / "policy.yaml", store=f"sqlite:///{folder / 'kept'}")
    with started(serve_fake, config) as (running, url):
        yield running, f"{url}/admin/rollouts"


def the_only(url: str) -> dict[str, Any]:
    [rollout] = httpx2.get(url).json()["rollouts"]
    return dict(rollout)


def test_a_rollout_survives_kill_9(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with process(tmp_path) as (running, url):
        name = the_only(url)["id"]
        for command in ("start", "promote"):
            body = {"reason": "test", "force": command == "promote"}
            assert httpx2.post(f"{url}/{name}/{command}", json=body).status_code == 200
        before = the_only(url)
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert (before["phase"], before["stage"]) == ("running", "canary 50%")
    with process(tmp_path) as (_, url):
        after = the_only(url)
        assert after == before
        events = httpx2.get(f"{url}/{name}").json()["events"]
        assert [event["kind"] for event in events] == ["started", "promoted"]
