"""Commands that are made of resources, against a server that runs: their parts, their acts and their columns."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from prolepsis.server.output.built_in import Repetition
from tests.server.conftest import served
from tests.server.fakes import FakeEngine
from tests.server.output.policies import loaded
from tests.waiting import wait_for

TRAFFIC_CLASS = "chat-completions/standard/free/short"
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    engine = FakeEngine(counts=(TrafficClassCounts("draft_head", TRAFFIC_CLASS, num_judged=100, num_right=60),))
    with served(engine, output=[loaded(Repetition(), name="again")]) as running:
        wait_for(lambda: httpx2.get(f"{running.url}/admin/health").json()["drift"]["streams"])
        body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
        httpx2.post(f"{running.url}/v1/chat/completions", json=body)
        httpx2.post(f"{running.url}/v1/chat/completions", json=body | {"speculation": {"mode": "shadow"}})
        yield lambda *words: CliRunner().invoke(app, [*words, "--url", running.url])


def test_contract(run: Run) -> None:
    shown = run("show", "delivery").stdout
    assert "again" in shown
    assert "suffix" in shown
    [one] = json.loads(run("show", "delivery", "--json").stdout)["delivered"]
    assert (one["num_verified"], one["num_delivered"], one["lost"]) == (3, 0, {"left": 3})


def test_drift(run: Run) -> None:
    assert "learning" in run("show", "drift").stdout
    assert run("breaker", "reset", "draft_head", TRAFFIC_CLASS).exit_code == 0
    assert json.loads(run("breaker", "reset", "draft_head", TRAFFIC_CLASS, "--json").stdout)["num_judged"] == 0
    refused = run("breaker", "reset", "suffix", TRAFFIC_CLASS)
    assert refused.exit_code == 2
    assert "has no stream" in refused.stderr


def test_replicas(run: Run) -> None:
    shown = run("show", "replicas").stdout
    assert "ready" in shown
    assert "seen" in shown
    [one] = json.loads(run("show", "replicas", "--json").stdout)["replicas"]
    assert (one["here"], one["model"], one["engines"]) == (True, "tiny", [])


def test_shadow(run: Run) -> None:
    [one] = json.loads(run("show", "shadow", "--json").stdout)["traffic_classes"]
    assert (one["traffic_class"], one["num_requests"]) == (TRAFFIC_CLASS, 1)
    shown = run("show", "shadow").stdout
    assert "suffix" in shown
    assert "50%" in shown, "3 of 6"
