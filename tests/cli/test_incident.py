"""`prolepsis incident` on a store, and on a server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from typer.testing import CliRunner, Result

from prolepsis.audit import chain
from prolepsis.audit.entry import SERVED
from prolepsis.cli.main import app
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.store.store import Store, opened_store
from prolepsis.telemetry.logs import configure_logs
from prolepsis.telemetry.metrics import Metrics
from tests.api.conftest import served
from tests.api.fakes import FakeEngine

EVENTS = (
    AuditEvent(actor=SERVER, action="server.started", versions={"software": "1.2"}, after={"server": {"port": 8000}}),
    AuditEvent(actor="command line, ann", action="kill.on", subject="all", after={"on": True, "reason": "drill"}),
    AuditEvent(actor="key1", action=SERVED, subject="request", tenant="acme"),
    AuditEvent(actor=SERVER, action="rollout.rolled_back", subject="main/wider", after={"reason": "slower"}),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """The store that commands use here, with `EVENTS`."""
    setting = f"sqlite:///{tmp_path / 'store.sqlite'}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROLEPSIS_STORE", setting)
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    configure_logs("error")
    with opened_store(ServerConfig(store=setting), Metrics().registry) as opened:
        assert opened is not None
        with opened.database.write() as connection:
            chain.append(connection, EVENTS)
        yield opened
    structlog.reset_defaults()


def incident(*words: str) -> Result:
    return CliRunner().invoke(app, ["incident", *words])


def test_the_timeline_has_all_but_served_requests(store: Store) -> None:
    rows = json.loads(incident("timeline", "--json").stdout)
    assert [(row["kind"], row["what"]) for row in rows] == [
        ("deployment", "server.started"),
        ("change", "kill.on"),
        ("rollout", "rollout.rolled_back"),
    ]
    assert json.loads(incident("timeline", "--from", "2h", "--to", "1h", "--json").stdout) == []
    assert "reason drill" in incident("timeline").stdout
    assert "| rollout | rollout.rolled_back | server | main/wider | reason slower |" in (
        incident("timeline", "--markdown").stdout
    )


def test_a_server_has_the_same_timeline(store: Store) -> None:
    with served(FakeEngine(), store=store) as running:
        shown = json.loads(incident("timeline", "--url", running.url, "--json").stdout)
    assert shown[:3] == json.loads(incident("timeline", "--json").stdout)[:3]


def test_a_wrong_time_says_what_is_allowed(store: Store) -> None:
    result = incident("timeline", "--from", "yesterday")
    assert (result.exit_code, "allowed: now, so long ago" in result.stderr) == (2, True)
