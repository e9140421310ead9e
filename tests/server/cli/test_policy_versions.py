"""`prolepsis policy apply|history|show|rollback` against a server that runs."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.store.store import Store
from prolepsis.control.store.writer import ItemWriter
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.server.cli.main import app
from tests.control.store.databases import migrated_setting, opened
from tests.server.conftest import served
from tests.server.fakes import FakeEngine

Policy = Callable[..., Result]


@pytest.fixture
def policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Policy]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")  # the server runs in this process: its lines would be among the command's
    engine = FakeEngine()
    store = Store(opened(migrated_setting(tmp_path)), ItemWriter())
    with closing(store), served(engine, store=store) as running:
        yield lambda *words: CliRunner().invoke(app, ["policy", *words, "--url", running.url])


def test_from_apply_to_rollback(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "off.yaml").write_text("default: {mode: off}\n")
    (tmp_path / "on.yaml").write_text("default: {mode: on}\n")
    assert json.loads(policy("show", "--json").stdout)["version"] == 0
    first = policy("apply", "off.yaml", "--expect", "0", "--reason", "ticket 7")
    assert first.exit_code == 0, first.output
    second = json.loads(policy("apply", "on.yaml", "--json").stdout)
    assert second["version"] == 2
    assert policy("rollback", "1", "--expect", "2").exit_code == 0
    listed = json.loads(policy("history", "--json").stdout)
    assert [(one["version"], one["reason"]) for one in listed["versions"]] == [
        (3, "rolled back to version 1"),
        (2, ""),
        (1, "ticket 7"),
    ]
    shown = policy("history").stdout
    assert "ticket 7" in shown
    assert "in use" in shown
    assert policy("show", "2").stdout == "default: {mode: on}\n"
    assert json.loads(policy("show", "3", "--json").stdout)["text"] == "default: {mode: off}\n"
    assert "store" in policy("show").stdout


def test_refusals_are_shown(policy: Policy, tmp_path: Path) -> None:
    (tmp_path / "on.yaml").write_text("default: {mode: on}\n")
    (tmp_path / "bad.yaml").write_text("default: {mode: warp}\n")
    bad = policy("apply", "bad.yaml")
    assert bad.exit_code == 2
    assert "policy:1: default.mode is 'warp'" in bad.stderr
    assert policy("apply", "on.yaml").exit_code == 0
    late = policy("apply", "on.yaml", "--expect", "0")
    assert late.exit_code == 2
    assert "409: the policy in use is version 1 by developer, not version 0" in late.stderr
    assert "stored: 1 to 1" in policy("rollback", "5").stderr
    assert "cannot be read" in policy("apply", "none.yaml").stderr
