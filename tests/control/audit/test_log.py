"""A server's own acts are in the audit log of its store, and old texts leave it."""

import signal
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED, AuditEntry
from prolepsis.control.audit.log import QueuedEvent
from prolepsis.control.audit.retention import TextRetention, erase_old_texts, old_texts, text_upkeep
from prolepsis.control.audit.verify import verify
from prolepsis.control.policy.runtime import Policies
from prolepsis.control.policy.source import PolicyFile
from prolepsis.control.rollout.machine import RolloutEvent
from prolepsis.control.rollout.runtime import Rollouts, audit_event
from prolepsis.control.store.database import Database
from prolepsis.control.store.store import Store, open_store
from prolepsis.control.store.writer import WriterSettings
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import DAY_S, ServerConfig
from prolepsis.core.errors import ConfigError
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.rollout.rollout import memory_store
from tests.control.store.databases import migrated_setting, opened, sqlite_setting
from tests.fake_client import INFO
from tests.server_process import serve_fake, started
from tests.world.site import Site


def entries_of(database: Database) -> list[AuditEntry]:
    with database.read() as connection:
        entries = list(chain.entries(connection))
    assert verify(entries).faults == ()
    return entries


def written_to(store: Store) -> list[AuditEntry]:
    assert store.writer.flush(20.0)
    return entries_of(store.database)


async def test_changes_of_the_policy_are_recorded_with_before_and_after(tmp_path: Path, store: Store) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text("version: 1\ndefault: {mode: off}\n")
    rollouts = Rollouts(memory_store(), lambda _: None, Metrics().registry, model="tiny")
    policies = Policies(
        PolicyFile(file), INFO.proposers, rollouts, emit=lambda event: store.writer.offer(QueuedEvent(event))
    )
    file.write_text("version: 2\ndefault: {mode: on}\n")
    await policies.tick()
    loaded, reloaded = written_to(store)
    assert (loaded.action, reloaded.action) == ("policy.loaded", "policy.reloaded")
    assert reloaded.versions["policy"].startswith("2@")
    assert loaded.details is not None
    assert reloaded.details is not None
    assert loaded.details.before is None
    assert reloaded.details.before == loaded.details.after
    assert isinstance(reloaded.details.after, dict)
    assert reloaded.details.after["default"]["mode"] == "on"
    assert (reloaded.details.actor, reloaded.details.subject) == ("server", str(file))


async def test_actions_by_hand_are_recorded_with_their_author(tmp_path: Path, store: Store) -> None:
    config = ServerConfig(controls_file=tmp_path / "controls.json")
    async with Site(config=config, store=store).http as http:
        assert (await http.put("/admin/kill", json={"on": True, "reason": "drill"})).status_code == 200
        breaker = {"proposer": INFO.proposers[0], "traffic_class": "text/none/free/short", "state": "forced_open"}
        breaker |= {"reason": "its drafts are odd"}
        assert (await http.put("/admin/health", json=breaker)).status_code == 200, breaker
    killed, opened_by_hand = written_to(store)
    assert (killed.action, opened_by_hand.action) == ("kill.on", "breaker.forced_open")
    assert killed.details is not None
    assert opened_by_hand.details is not None
    assert (killed.details.actor, opened_by_hand.details.actor) == ("developer", "developer")
    assert isinstance(killed.details.before, dict)
    assert isinstance(killed.details.after, dict)
    assert isinstance(opened_by_hand.details.after, dict)
    assert opened_by_hand.details.after["because"] == "its drafts are odd"
    assert (killed.details.before["on"], killed.details.after["on"]) == (False, True)
    assert killed.details.after["shared"][0]["reason"] == "drill"


def test_changes_of_a_rollout_are_recorded_with_their_numbers_and_their_author(store: Store) -> None:
    by_hand = RolloutEvent(7.0, "code@1", "3@ab", 1, "started", "shadow", "by k1", by="k1")
    store.writer.offer(QueuedEvent(audit_event(by_hand)))
    store.writer.offer(QueuedEvent(audit_event(replace(by_hand, kind="promoted", by=""))))
    started, promoted = written_to(store)
    assert (started.action, started.versions) == ("rollout.started", {"policy": "3@ab"})
    assert started.details is not None
    assert isinstance(started.details.after, dict)
    assert (started.details.subject, started.details.after["reason"]) == ("code@1", "by k1")
    assert promoted.details is not None
    assert (started.details.actor, promoted.details.actor) == ("k1", "server")


def test_a_process_records_its_start_and_its_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROLEPSIS_DATA", str(tmp_path))
    with started(serve_fake, ServerConfig(shutdown_s=1.0)) as (running, _):
        running.send_signal(signal.SIGTERM)
        assert running.wait(20) == 0
    with closing(opened(sqlite_setting(tmp_path))) as database:
        first, last = entries_of(database)
    assert (first.action, last.action) == ("server.started", "server.stopped")
    assert first.versions["model"] == INFO.model
    assert first.details is not None
    assert isinstance(first.details.after, dict)
    assert first.details.after["server"]["store"] == "auto"


def test_none_means_no_store_and_other_texts_are_errors() -> None:
    with closing(open_store("none", Metrics().registry)) as store:
        store.writer.offer(QueuedEvent(AuditEvent(actor="server", action="server.stopped")))
        assert store.writer.flush(1.0)
        assert entries_of(store.database) == []
        assert not store.database.is_kept
    with (
        pytest.raises(ConfigError, match="sqlite:///FILE"),
        closing(open_store("mysql://somewhere/else", Metrics().registry)),
    ):
        pass


TEXT = {"prompt": "what is it?", "outputs": ["this"]}
DIGESTS = {"prompt_digest": "ab", "sampling": {"stop": ['"prompt":']}}
IN_10_DAYS = time.time() + 10 * DAY_S


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    """Entries 1 to 4: texts of two tenants, digests, and an act of an operator."""
    events = [
        AuditEvent(actor="key", action=SERVED, subject="r1", tenant="acme", after=TEXT),
        AuditEvent(actor="key", action=SERVED, subject="r2", tenant="other", after=TEXT),
        AuditEvent(actor="key", action=SERVED, subject="r3", tenant="acme", after=DIGESTS),
        AuditEvent(actor="ann", action="policy.applied", subject="p", after={"prompt": "no request"}),
    ]
    with closing(opened(migrated_setting(tmp_path))) as database:
        with database.write() as connection:
            chain.append(connection, events)
        yield database


def entries(database: Database) -> list[AuditEntry]:
    with database.read() as connection:
        found = list(chain.entries(connection))
    assert verify(found).faults == ()
    return found


@pytest.mark.parametrize(
    ("retention", "erased"),
    [
        (TextRetention(7), (1, 2)),
        (TextRetention(11), ()),
        (TextRetention(0), ()),
        (TextRetention(0, {"acme": 7}), (1,)),
        (TextRetention(7, {"acme": 0}), (2,)),
        (TextRetention(7, {"acme": 11}), (2,)),
        (TextRetention(11, {"acme": 7, "other": 7}), (1, 2)),
    ],
)
def test_texts_are_erased_after_the_days_of_their_tenant(
    database: Database, retention: TextRetention, erased: tuple[int, ...]
) -> None:
    with database.read() as connection:
        assert tuple(one.seq for one in old_texts(connection, retention, IN_10_DAYS)) == erased
    assert erase_old_texts(database, retention, IN_10_DAYS) == len(erased)
    found = entries(database)
    assert tuple(entry.seq for entry in found if entry.details is None) == erased
    assert [entry.erases for entry in found[4:]] == ([erased] if erased else [])
    assert erase_old_texts(database, retention, IN_10_DAYS) == 0
    assert len(entries(database)) == len(found)


def test_a_server_erases_old_texts_by_itself(database: Database, tmp_path: Path) -> None:
    assert database.file is not None
    config = ServerConfig(
        store=f"sqlite:///{database.file}", audit_text_days=0.0, audit_text_days_by_tenant=("acme=0.000000000001",)
    )
    with closing(open_store(config.store, Metrics().registry, WriterSettings(upkeep=text_upkeep(config)))):
        pass
    assert [entry.seq for entry in entries(database) if entry.details is None] == [1]


@pytest.mark.parametrize("given", ["acme", "=7", "acme=-1", "acme=soon", "acme=nan"])
def test_invalid_days_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="TENANT=DAYS"):
        ServerConfig(audit_text_days_by_tenant=(given,))
