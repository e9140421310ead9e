"""The whole process: a rollout survives kill -9 in the store."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.api.test_run import free_port, wait_until_live

SCRIPT = """
import sys
from pathlib import Path
from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.api.run import StartedEngine, serve
from tests.api.fakes import ByteTokenizer, FakeEngine

folder = Path(sys.argv[2])
config = ServerConfig(port=int(sys.argv[1]), policy=folder / "policy.yaml", store=f"sqlite:///{folder / 'kept'}")
serve(EngineConfig(), config, lambda c, m: StartedEngine(FakeEngine(), ByteTokenizer()))
"""
POLICY = """
default:
  mode: on
  rollout: {step_weights: [10, 50]}
  guardrails: [{name: errors, metric: error_rate, margin: 0.1}]
"""


@contextmanager
def process(folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    running = subprocess.Popen([sys.executable, "-c", SCRIPT, str(port), str(folder)])
    try:
        wait_until_live(f"http://127.0.0.1:{port}")
        yield running, f"http://127.0.0.1:{port}/admin/rollouts"
    finally:
        running.kill()
        running.wait()


def the_only(url: str) -> dict[str, Any]:
    [rollout] = httpx.get(url).json()["rollouts"]
    return dict(rollout)


def test_a_rollout_survives_kill_9(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text(POLICY)
    with process(tmp_path) as (running, url):
        name = the_only(url)["id"]
        for command in ("start", "promote"):
            body = {"reason": "test", "force": command == "promote"}
            assert httpx.post(f"{url}/{name}/{command}", json=body).status_code == 200
        before = the_only(url)
        running.send_signal(signal.SIGKILL)
        running.wait()
    assert (before["phase"], before["stage"]) == ("running", "canary 50%")
    with process(tmp_path) as (_, url):
        after = the_only(url)
        assert after == before
        events = httpx.get(f"{url}/{name}").json()["events"]
        assert [event["kind"] for event in events] == ["started", "promoted"]
