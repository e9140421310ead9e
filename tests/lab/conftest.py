"""A store for commands that leave an entry in the audit log, and what tests of served applications share."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prolepsis.control.store.signing import usable_keys
from prolepsis.core.config import ServerConfig
from prolepsis.server.cli.main import app
from tests.server.conftest import client, few_logs, lines, shared

__all__ = ["audit_actions", "client", "few_logs", "lines", "shared"]


@pytest.fixture
def audit_actions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """Make the store that commands use here; the result tells the actions in its audit log."""
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    CliRunner().invoke(app, ["store", "upgrade"])
    assert usable_keys(ServerConfig()) is not None, "a server was started once"

    def actions() -> list[str]:
        shown = CliRunner().invoke(app, ["audit", "show", "--json"])
        return [entry["action"] for entry in json.loads(shown.stdout)["entries"]]

    return actions
