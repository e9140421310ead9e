"""`prolepsis doctor` from end to end: a server in this process, its output and its exit statuses."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn
from typer.testing import CliRunner, Result

from prolepsis.core.config import EngineConfig, ServerConfig
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.terminal.output import BAD_INPUT, FAILED, UNPROVEN
from prolepsis.lab.doctor.checks import all_checks
from prolepsis.server.cli.main import app
from prolepsis.server.front.key_file import KeyFile, new_key
from prolepsis.server.run import StartedEngine, application, bind
from tests.lab.doctor.site import environment
from tests.server.fakes import ByteTokenizer, FakeEngine
from tests.server_thread import running
from tests.waiting import wait_for


def doctor(*words: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *words])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which nothing was done yet."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "250")
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    KeyFile(tmp_path / "keys.json").add(new_key("acme", roles=("client",))[0])  # one that is named has to be there
    configure_logs("error")
    return tmp_path


@pytest.fixture
def served(here: Path) -> Iterator[tuple[str, str]]:
    """The address and an admin's key of a server with a store, default settings and an engine of fakes."""
    record, key = new_key("acme", roles=("admin",))
    KeyFile(here / "keys.json").add(record)
    listener = bind(ServerConfig(port=0))
    port = listener.getsockname()[1]
    url, headers = f"http://127.0.0.1:{port}", {"authorization": f"Bearer {key}"}
    config = ServerConfig(port=port, keys_file=here / "keys.json", store=f"sqlite:///{here}/store.sqlite")
    with (
        application(
            EngineConfig(), config, lambda engine, metrics: StartedEngine(FakeEngine(), ByteTokenizer())
        ) as made,
        running(uvicorn.Config(made, log_config=None, lifespan="on"), listener),
    ):
        path = f"{url}/admin/audit?action=server.started"
        wait_for(lambda: httpx2.get(path, headers=headers).json()["entries"])
        yield url, key


def states(result: Result) -> dict[str, str]:
    document = json.loads(result.stdout)
    return {one["id"]: one["state"] for level in ("must", "should", "could") for one in document[level]}


def test_a_server_with_default_settings(served: tuple[str, str]) -> None:
    url, key = served
    result = doctor("--url", url, "--key", key, "--json")
    found = states(result)
    assert found.keys() == {check.id for check in all_checks()}
    passing = {"settings", "speculation", "ready", "deep", "keys", "tls", "store"}
    passing |= {"exactness", "breaker", "chat-template", "kill-off", "clock"}
    assert {name: found[name] for name in passing} == dict.fromkeys(passing, "pass")
    failing = {"quotas", "queue-limits", "anchors", "kill-tried", "drill", "exact-run", "cost-curve", "alertmanager"}
    assert {name: found[name] for name in failing} == dict.fromkeys(failing, "fail")
    unknown = {"guardrails", "replays-match", "alerts-loaded", "objectives", "runbooks", "backup"}
    assert {name: found[name] for name in unknown} == dict.fromkeys(unknown, "unknown")
    assert result.exit_code == UNPROVEN


def test_a_kill_that_was_tried_is_seen(served: tuple[str, str]) -> None:
    url, key = served
    words = ("--url", url, "--key", key, "--only", "kill-tried", "--only", "kill-off", "--json")
    for verb, state in (("stop", "fail"), ("resume", "pass")):
        assert not CliRunner().invoke(app, [verb, "--url", url, "--key", key]).exit_code
        wait_for(lambda: states(doctor(*words))["kill-tried"] == "pass")
        assert states(doctor(*words))["kill-off"] == state


def test_a_failing_must_ends_with_1_and_says_what_to_do(here: Path) -> None:
    (here / "prolepsis.yaml").write_text("breaker: off\n")
    result = doctor()
    assert result.exit_code == FAILED
    text = " ".join(result.stdout.split())
    for said in ("breaker: off", "set `breaker: on`", "no server is named: --url URL"):
        assert said in text
    assert result.stdout.splitlines()[-1].startswith("do not: 1 must fail; first breaker (breaker: off): set `breaker")


def test_settings_that_serve_refuses_are_the_one_that_fails(here: Path) -> None:
    (here / "prolepsis.yaml").write_text("nonsense: 1\n")
    result = doctor("--json")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["counts"]["must"]["fail"]) == (FAILED, 1)
    assert document["must"][0]["finding"].startswith("prolepsis.yaml sets 'nonsense'")


def test_without_a_server_its_checks_are_not_told(here: Path) -> None:
    result = doctor("--json", "--only", "ready", "--only", "breaker")
    assert (states(result), result.exit_code) == ({"ready": "unknown", "breaker": "pass"}, UNPROVEN)


def test_checks_of_other_levels_do_not_change_the_status(here: Path) -> None:
    words = ("--only", "cost-curve", "--only", "breaker")
    result = doctor("--json", *words)
    assert (states(result), result.exit_code) == ({"cost-curve": "fail", "breaker": "pass"}, 0)
    assert doctor(*words).stdout.splitlines()[-1] == "go on: 1 must pass, 0 unknown"


def test_a_check_that_there_is_not_is_refused(here: Path) -> None:
    result = doctor("--only", "breakers")
    assert (result.exit_code, "only is breakers; allowed: settings" in result.stderr) == (BAD_INPUT, True)
