"""Texts of requests in the audit log age, by tenant; the chain still verifies."""

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from pydantic import ValidationError

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED, AuditEntry
from prolepsis.control.audit.retention import TextRetention, erase_old_texts, old_texts, text_upkeep
from prolepsis.control.audit.verify import verify
from prolepsis.control.store.database import Database
from prolepsis.control.store.store import opened_store
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import DAY_S, ServerConfig
from prolepsis.core.telemetry.metrics import Metrics
from tests.control.store.databases import migrated_setting, opened

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
    with opened_store(config, Metrics().registry, upkeep=text_upkeep(config)):
        pass
    assert [entry.seq for entry in entries(database) if entry.details is None] == [1]


@pytest.mark.parametrize("given", ["acme", "=7", "acme=-1", "acme=soon", "acme=nan"])
def test_invalid_days_are_refused(given: str) -> None:
    with pytest.raises(ValidationError, match="TENANT=DAYS"):
        ServerConfig(audit_text_days_by_tenant=(given,))
