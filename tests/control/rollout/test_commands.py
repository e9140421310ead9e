"""`prolepsis rollout` against a server that runs."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.policy.source import PolicyFile
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

POLICY = """
rules:
  - name: code
    match: {}
    mode: on
    rollout: {stages: [5, 50], gate: manual}
    guardrails: [{name: taken, metric: acceptance_rate, limit: 0.4}]
"""
Rollout = Callable[..., Result]


@pytest.fixture
def rollout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rollout]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    (tmp_path / "policy.yaml").write_text(POLICY)
    engine, file = FakeEngine(), PolicyFile(tmp_path / "policy.yaml")
    with served(engine, policy=file) as running:
        yield lambda *words: CliRunner().invoke(app, ["rollout", *words, "--url", running.url])


def test_from_start_to_roll_back(rollout: Rollout) -> None:
    [listed] = json.loads(rollout("show", "--json").stdout)["rollouts"]
    assert (listed["rule"], listed["phase"], listed["num_stages"], listed["share"]) == ("code", "off", 3, 0.0)
    name = listed["id"]
    for words in (("start",), ("hold", "--reason", "lunch"), ("resume",), ("promote", "--force"), ("rollback",)):
        result = rollout(words[0], name, *words[1:])
        assert result.exit_code == 0, result.output
    assert "rolled_back" in rollout("show").stdout
    document = json.loads(rollout("show", name, "--json").stdout)
    assert [(event["kind"], event["stage"], event["reason"]) for event in document["events"]] == [
        ("started", "shadow", "by the developer"),
        ("held", "shadow", "by the developer: lunch"),
        ("resumed", "shadow", "by the developer"),
        ("promoted", "shadow", "by the developer, by force"),
        ("rolled_back", "canary 5%", "by the developer"),
    ]
    assert "lunch" in rollout("show", name).stdout
    assert json.loads(rollout("start", name, "--json").stdout)["phase"] == "running"


def test_impossible_commands_are_reported(rollout: Rollout) -> None:
    [listed] = json.loads(rollout("show", "--json").stdout)["rollouts"]
    refused = rollout("promote", listed["id"])
    assert refused.exit_code == 2
    assert "409: 'promote' is for rollouts that are running, gate, held; this one is off" in refused.stderr
    unknown = rollout("show", "nobody")
    assert unknown.exit_code == 2
    assert f"there is no rollout 'nobody'; the policy in use has: {listed['id']}" in unknown.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9", "no server answers at http://127.0.0.1:9"),
        ("127.0.0.1:8000", "--url is '127.0.0.1:8000'; allowed: the URL of a server, such as http://127.0.0.1:8000"),
    ],
)
def test_an_address_where_no_server_can_be_is_refused(url: str, said: str) -> None:
    result = CliRunner().invoke(app, ["rollout", "show", "--url", url])
    assert (result.exit_code, said in result.stderr) == (2, True)
