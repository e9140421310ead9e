"""Commands of users without the audit key: they make no key, and their acts wait for a server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from prolepsis.control.audit import chain
from prolepsis.control.audit.feature import WaitingActs
from prolepsis.control.audit.verify import Anchor, ChainEvidence, verify
from prolepsis.control.audit.waiting import leave, take
from prolepsis.control.controls.file import ControlsFile
from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.control.store.signing import OPTION, AuditKeys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.server.cli.main import app
from tests.control.store.databases import migrated_setting

STARTED = AuditEvent(actor="server", action="server.started")


class Site:
    """A store, the keys of its server, and a user of the same machine."""

    def __init__(self, folder: Path, server_has_started: bool) -> None:
        self.folder = folder
        self.keys = AuditKeys(folder / "server" / "audit-key.pem")
        url = store_url(migrated_setting(folder))
        assert url is not None
        self.server = Database(url, options={OPTION: self.keys})
        if server_has_started:
            with self.server.write() as connection:
                chain.append(connection, [STARTED])

    def run(self, *words: str, **environment: str) -> Result:
        given = {
            "PROLEPSIS_STORE": f"sqlite:///{self.folder / 'store.sqlite'}",
            "PROLEPSIS_DATA": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "user"),
        }
        return CliRunner().invoke(app, words, env=given | environment)

    def entries(self) -> list[Mapping[str, Any]]:
        """Return the entries, which no verification finds fault with."""
        with self.server.read() as connection:
            found = list(chain.entries(connection))
            head, signed = Anchor(*chain.head(connection)), chain.signed_head(connection)
        assert verify(found, ChainEvidence(head, signed, self.keys.public)).faults == ()
        return [entry.plain() for entry in found]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path, server_has_started=True)


async def test_an_act_without_the_key_waits_and_the_server_signs_it(site: Site) -> None:
    done = site.run("stop", "--reason", "ask ann@example.org")
    assert done.exit_code == 0
    assert "kill.on waits in the store until a server signs it into the audit log: audit key" in done.stderr
    assert "PROLEPSIS_AUDIT_KEY" in done.stderr
    assert not list((site.folder / "user").rglob("*.pem"))
    assert "kill everything" in ControlsFile(site.folder / "data" / "controls.json").read().local
    assert len(site.entries()) == 1
    assert json.loads(site.run("store", "status", "--json").stdout)["acts_waiting_for_a_server"] == 1
    for _ in range(2):
        await WaitingActs(site.server).tick()
    [_, entry] = site.entries()
    details = entry["details"]
    assert entry["action"] == "kill.on"
    assert details["actor"].startswith("command line, ")
    assert details["actor"].endswith(", without the audit key")
    assert details["after"]["after"]["on"] is True
    assert details["after"]["left_at"]
    assert "ann@example.org" not in json.dumps(entry)


def test_with_the_servers_key_an_act_has_its_entry_at_once(site: Site) -> None:
    done = site.run("stop", PROLEPSIS_AUDIT_KEY=str(site.keys.path))
    assert (done.exit_code, "waits" in done.stderr) == (0, False)
    assert [entry["action"] for entry in site.entries()] == ["server.started", "kill.on"]


def test_a_key_of_another_server_signs_nothing_here(site: Site) -> None:
    other = AuditKeys(site.folder / "other.pem")
    assert other.public is not None
    done = site.run("stop", PROLEPSIS_AUDIT_KEY=str(other.path))
    assert "other.pem is not one that signs the log of this store" in done.stderr
    assert (len(site.entries()), take(site.server), len(site.entries())) == (1, 1, 2)


@pytest.mark.parametrize("words", [("store", "forget-tenant", "acme"), ("store", "prune", "--days", "1", "--yes")])
def test_changes_of_signed_chains_need_the_key(site: Site, words: tuple[str, ...]) -> None:
    done = site.run(*words)
    assert (done.exit_code, "does not exist; the first start of a server makes it" in done.stderr) == (2, True)
    assert (len(site.entries()), take(site.server)) == (1, 0)
    assert site.run(*words, PROLEPSIS_AUDIT_KEY=str(site.keys.path)).exit_code == 0


def test_acts_about_a_tenant_that_wait_are_forgotten_with_it(site: Site) -> None:
    acts = [
        AuditEvent(actor="ann", action="key.created", tenant=tenant, subject=f"of {tenant}")
        for tenant in ("acme", "bank")
    ]
    with site.server.write() as connection:
        for act in acts:
            leave(connection, act)
    assert site.run("store", "forget-tenant", "acme", PROLEPSIS_AUDIT_KEY=str(site.keys.path)).exit_code == 0
    take(site.server)
    [_, of_acme, of_bank, forgotten] = site.entries()
    assert (of_acme["action"], of_acme["details"], forgotten["erases"]) == ("key.created", None, (of_acme["seq"],))
    assert of_bank["details"]["subject"] == "of bank"


def test_before_the_first_start_acts_wait_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path, server_has_started=False)
    assert "waits in the store" in site.run("stop").stderr
    assert take(site.server) == 1
    assert [entry["action"] for entry in site.entries()] == ["kill.on"]


def test_a_log_that_is_not_signed_goes_on_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path, server_has_started=False)
    url = store_url(f"sqlite:///{tmp_path / 'store.sqlite'}")
    assert url is not None
    with Database(url).write() as connection:
        chain.append(connection, [STARTED])
    assert "warning" not in site.run("stop").stderr
    with site.server.read() as connection:
        assert [entry.action for entry in chain.entries(connection)] == ["server.started", "kill.on"]


def test_an_unreadable_event_is_recorded_and_stops_no_other(site: Site) -> None:
    with site.server.write() as connection:
        Documents("act", str, str).put(connection, [StoredDocument("x", '{"actor": 1}', 1.0)])
    site.run("stop")
    assert take(site.server) == 2
    assert [entry["action"] for entry in site.entries()][1:] == ["audit.act_unreadable", "kill.on"]
