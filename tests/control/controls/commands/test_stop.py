"""`prolepsis stop` and `resume`, as an operator without a server at hand uses it."""

import json
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner, Result

from prolepsis.control.controls.file import ControlsFile, of_kind
from prolepsis.control.controls.kill_switch import KILL, KillStatus, kill_status
from prolepsis.control.store.store import open_store
from prolepsis.core.config import ServerConfig
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.store.databases import migrated_setting
from tests.server.conftest import Served, served
from tests.server.fakes import FakeEngine


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments])


def in_file(path: Path) -> KillStatus:
    return kill_status(of_kind(ControlsFile(path).read().local, KILL), {})


def test_stop_show_resume(home: Path) -> None:
    assert "killed    none" in run("stop", "--show").stdout
    done = run("stop", "--reason", "odd drafts")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("stopped, since 20")
    assert done.stdout.endswith(": odd drafts\n")
    [stopped] = in_file(home / "controls.json").operator
    assert (stopped.scope, stopped.reason) == ("everything", "odd drafts")
    assert stopped.by
    shown = json.loads(run("stop", "--show", "--json").stdout)
    assert (shown["on"], shown["file"]) == (True, str(home / "controls.json"))
    assert run("resume").exit_code == 0
    assert not in_file(home / "controls.json").on


def test_a_reason_is_redacted_before_it_is_written(home: Path) -> None:
    assert run("stop", "--reason", "ask ann@example.org " + "x" * 2000).exit_code == 0
    assert in_file(home / "controls.json").operator[0].reason.startswith("ask [EMAIL] x")
    assert "ann@example.org" not in (home / "controls.json").read_text()


def test_one_scope(home: Path) -> None:
    assert run("stop", "--scope", "tenant:bank", "--reason", "drill").exit_code == 0
    run("stop", "--scope", "proposer:suffix")
    shown = run("stop", "--show").stdout
    assert re.search(r"tenant:bank +20\S+ +\S+ +drill", shown), shown
    assert re.search(r"proposer:suffix +20", shown), shown
    freed = run("resume", "--scope", "tenant:bank", "--reason", "over").stdout
    assert freed.startswith("allowed for tenant:bank, since 20")
    assert freed.endswith(": over\n")
    assert freed.count("\n") == 1, "only its own scope"
    assert in_file(home / "controls.json").killed == ("proposer:suffix",)
    refused = run("stop", "--scope", "team:x")
    assert refused.exit_code == 2
    assert "allowed: everything" in refused.stderr


def test_a_scope_that_a_server_does_not_have_is_a_warning(home: Path, server: Served) -> None:
    done = run("stop", "--url", server.url, "--scope", "tenant:nobody", "--reason", "drill")
    assert done.exit_code == 0
    assert done.stdout.startswith("stopped for tenant:nobody, since 20")
    assert "nothing on this server has the scope tenant:nobody now; its tenants: none" in done.stderr.replace("\n", " ")
    routed = run("stop", "--url", server.url, "--scope", "route:/v1/chat/completions", "--reason", "drill")
    assert "warning" not in routed.stderr
    assert "tenant:nobody now" in run("stop", "--show", "--url", server.url).stderr
    assert "no server was asked whether it has rule:x" in run("stop", "--scope", "rule:x").stderr


def test_a_second_stop_keeps_the_first_reason(home: Path) -> None:
    run("stop", "--reason", "odd drafts")
    assert run("stop", "--reason", "drill").stdout.endswith(": odd drafts\n")
    run("resume", "--reason", "fixed")
    assert run("stop", "--reason", "drill").stdout.endswith(": drill\n")


def test_the_configured_file_is_meant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_CONTROLS_FILE", str(home / "other.json"))
    run("stop")
    assert (home / "other.json").exists()
    run("stop", "--controls-file", str(home / "third.json"))
    assert (home / "third.json").exists()
    assert not (home / "controls.json").exists()


def test_unreadable_and_unwritable_files_are_reported(home: Path) -> None:
    (home / "controls.json").write_text("{")
    assert run("stop", "--show").exit_code != 0
    (home / "folder").write_text("")
    assert run("stop", "--controls-file", str(home / "folder" / "controls.json")).exit_code != 0


@pytest.fixture
def server(home: Path) -> Iterator[Served]:
    configure_logs("error")  # it runs in this process: its lines would be among the command's
    config = ServerConfig(controls_file=home / "its.json")
    with served(FakeEngine(), config) as running:
        yield running


def test_a_server_is_controlled_by_its_url(home: Path, server: Served) -> None:
    done = run("stop", "--url", server.url, "--reason", "odd drafts")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("stopped, since 20")
    assert done.stdout.endswith(" by developer: odd drafts\n")
    assert server.engine.plans[-1].reason == "killed"
    assert in_file(home / "its.json").on
    assert not (home / "controls.json").exists()
    status = json.loads(run("stop", "--show", "--url", server.url, "--json").stdout)
    assert (status["on"], status["sources"]) == (True, ["operator"])
    again = run("stop", "--url", server.url, "--reason", "another drill")
    assert again.stdout.endswith(" by developer: odd drafts\n")
    assert "its first reason stays" in again.stderr
    released = run("resume", "--url", server.url, "--reason", "fixed").stdout
    assert (released.startswith("allowed, since 20"), released.endswith(" by developer: fixed\n")) == (True, True)
    both = run("stop", "--url", server.url, "--controls-file", "controls.json")
    assert (both.exit_code, "allowed: one of them" in both.stderr) == (2, True)
    assert run("stop", "--show", "--url", "http://127.0.0.1:9").exit_code == 2


def test_a_stop_that_is_not_saved_says_so(home: Path, server: Served) -> None:
    (home / "its.json").mkdir()
    (home / "its.json" / "x").touch()
    assert "cannot be written" in run("stop", "--url", server.url).stderr


def test_breakers_of_a_server(home: Path, server: Served) -> None:
    def of_server(*words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--url", server.url], env={"COLUMNS": "200"})

    name = "chat-completions/standard/free/short"
    done = of_server("breaker", "set", "suffix", name, "forced_open")
    assert done.exit_code == 0, done.output
    [listed] = json.loads(of_server("show", "breakers", "--json").stdout)["breakers"]
    assert (listed["proposer"], listed["traffic_class"], listed["state"]) == ("suffix", name, "forced_open")
    shown = [line.split() for line in of_server("show", "breakers").stdout.splitlines()]
    assert [name, "suffix", "forced_open", "all"] in [words[:4] for words in shown]
    assert ["traffic", "class", "proposer", "state", "tenants"] in [words[:5] for words in shown]
    assert "forced_open" in (home / "its.json").read_text()
    assert json.loads(of_server("breaker", "set", "suffix", name, "closed", "--json").stdout)["not_saved"] is None
    wrong = of_server("breaker", "set", "magic", name, "closed")
    assert (wrong.exit_code, "allowed: suffix, prediction" in wrong.stderr) == (2, True)


def test_scopes_stopped_for_all_replicas_are_shown(home: Path) -> None:
    configure_logs("error")
    store = open_store(migrated_setting(home), CollectorRegistry())
    assert store is not None
    with closing(store), served(FakeEngine(), ServerConfig(controls_file=home / "its.json"), store=store) as running:
        run("stop", "--url", running.url, "--scope", "tenant:bank", "--reason", "drill")
        shown = run("stop", "--show", "--url", running.url).stdout
    assert re.search(r"shared\s.*tenant:bank +20\S+ +developer +drill", shown, re.DOTALL), shown


@pytest.mark.parametrize("scope", ["everything", "tenant:bank"])
def test_a_stop_replaces_a_damaged_file_by_one_that_stops_everything(home: Path, scope: str) -> None:
    file = home / "controls.json"
    file.write_text("{")
    refused = run("resume", "--scope", scope)
    assert (refused.exit_code, "is damaged" in refused.stderr.replace("\n", " ")) == (2, True)
    assert file.read_text() == "{"
    done = run("stop", "--scope", scope, "--reason", "drill")
    assert (done.exit_code, ": drill\n" in done.stdout) == (0, True)
    assert "everything is stopped until" in done.stderr.replace("\n", " ")
    assert in_file(file).killed == tuple(sorted({"everything", scope}))
    assert (home / "controls.json.damaged").read_text() == "{"
    assert run("resume").exit_code == 0
    assert in_file(file).killed == tuple({scope} - {"everything"})


def test_what_the_store_stops_is_shown_without_a_server(home: Path) -> None:
    configure_logs("error")
    store, file = open_store(migrated_setting(home), CollectorRegistry()), home / "its.json"
    assert store is not None
    with closing(store), served(FakeEngine(), ServerConfig(controls_file=file), store=store) as running:
        run("stop", "--url", running.url, "--reason", "drill")
    shown = run("stop", "--show", "--controls-file", str(file)).stdout
    assert re.search(r"shared\s.*everything +20", shown, re.DOTALL), shown
    off = run("resume", "--controls-file", str(file))
    assert off.stdout.startswith("stopped, since 20")
    assert "still stopped on all replicas" in off.stderr.replace("\n", " ")
    assert "--url" in off.stderr
    other = run("resume", "--controls-file", str(file), "--scope", "rule:x")
    assert "still stopped on all replicas" not in other.stderr.replace("\n", " ")


def test_who_turned_the_file_off_is_not_named_where_the_store_stops_and_releases(home: Path) -> None:
    configure_logs("error")
    store, file = open_store(migrated_setting(home), CollectorRegistry()), home / "its.json"
    assert store is not None
    run("stop", "--controls-file", str(file))
    run("resume", "--controls-file", str(file))
    with closing(store), served(FakeEngine(), ServerConfig(controls_file=file), store=store) as running:
        run("stop", "--url", running.url, "--reason", "drill")
        shown = run("stop", "--show", "--url", running.url).stdout
        assert run("resume", "--url", running.url).stdout.endswith(" by developer\n")
    assert re.search(r"operator +none\n.*shared\s.*everything +20\S+ +developer", shown, re.DOTALL), shown
