"""`prolepsis kill`, as an operator without a server at hand uses it."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.cli.main import app
from prolepsis.control.kill_file import KillFile


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kill(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["kill", *arguments])


def test_on_status_off(home: Path) -> None:
    assert kill("status").stdout == "off\n"
    done = kill("on", "--reason", "odd drafts")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("on, since 20")
    assert done.stdout.endswith(": odd drafts\n")
    state = KillFile(home / "kill.json").read()
    assert (state.on, state.reason) == (True, "odd drafts")
    assert state.by
    shown = json.loads(kill("status", "--json").stdout)
    assert (shown["on"], shown["file"]) == (True, str(home / "kill.json"))
    assert kill("off").exit_code == 0
    assert not KillFile(home / "kill.json").read().on


def test_the_configured_file_is_meant(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_KILL_FILE", str(home / "other.json"))
    kill("on")
    assert (home / "other.json").exists()
    kill("on", "--kill-file", str(home / "third.json"))
    assert (home / "third.json").exists()
    assert not (home / "kill.json").exists()


def test_what_cannot_be_read_or_written_is_said(home: Path) -> None:
    (home / "kill.json").write_text("{")
    assert kill("status").exit_code != 0
    (home / "folder").write_text("")
    assert kill("on", "--kill-file", str(home / "folder" / "kill.json")).exit_code != 0
