"""Keys that sign the ends of chains: where they come from, and what they prove."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from prolepsis.control.audit import chain
from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.signing import OPTION, AuditKeys, PublicKeys, key_file, usable_keys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import ConfigError
from tests.control.store.databases import sqlite_setting

EVENT = AuditEvent(actor="ann", action="plan.applied")


def keyed(folder: Path, keys: AuditKeys | None) -> Database:
    url = store_url(sqlite_setting(folder))
    assert url is not None
    database = Database(url, options={OPTION: keys})
    upgrade(database)
    return database


def append(database: Database) -> None:
    with database.write() as connection:
        chain.append(connection, [replace(EVENT, uid=AuditEvent(actor="", action="").uid)])


def actions(database: Database) -> list[str]:
    with database.read() as connection:
        return [entry.action for entry in chain.entries(connection)]


def test_a_key_is_made_once_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "config" / "audit-key.pem"
    head = AuditKeys(path).sign("audit", 7, "ab" * 32)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert AuditKeys(path).public.fault(head) is None
    assert PublicKeys.read(path.with_suffix(".pub")).fault(head) is None
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="can be read by others"):
        AuditKeys(path).sign("audit", 7, "ab" * 32)


def test_a_signature_is_of_everything_that_a_head_says(tmp_path: Path) -> None:
    keys, other = AuditKeys(tmp_path / "a.pem"), AuditKeys(tmp_path / "b.pem")
    head = keys.sign("audit", 7, "ab" * 32)
    assert keys.public.fault(head) is None
    changed = ({"chain": "requests"}, {"seq": 8}, {"digest": "0" * 64}, {"at": ""}, {"signature": "?"})
    for change in changed:
        assert keys.public.fault(replace(head, **change)) is not None
    assert "unknown key" in (other.public.fault(head) or "")


def test_replicas_know_one_another_by_their_public_keys(tmp_path: Path) -> None:
    keys, other = AuditKeys(tmp_path / "a.pem"), AuditKeys(tmp_path / "b.pem")
    head = other.sign("audit", 7, "ab" * 32)
    keys.sign("audit", 1, "")
    keys.public_path.write_text(keys.public_path.read_text() + other.public_path.read_text())
    assert AuditKeys(tmp_path / "a.pem").public.fault(head) is None


def test_the_key_is_beside_the_key_file_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert key_file(ServerConfig()) == tmp_path / "prolepsis" / "audit-key.pem"
    assert key_file(ServerConfig(keys_file=tmp_path / "k" / "keys.json")) == tmp_path / "k" / "audit-key.pem"
    assert key_file(ServerConfig(audit_key=tmp_path / "my.pem")) == tmp_path / "my.pem"


def test_a_named_key_must_be_usable_and_the_default_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no key")
    (tmp_path / "file").chmod(0o600)
    with pytest.raises(ConfigError, match="no Ed25519 private key"):
        usable_keys(ServerConfig(audit_key=tmp_path / "file"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    assert usable_keys(ServerConfig()) is None


def test_the_head_is_signed_with_every_entry(tmp_path: Path) -> None:
    keys = AuditKeys(tmp_path / "audit-key.pem")
    database = keyed(tmp_path, keys)
    for _ in range(3):
        append(database)
    with database.read() as connection:
        head, signed = chain.head(connection), chain.signed_head(connection)
    assert signed is not None
    assert (signed.seq, signed.digest) == head
    assert keys.public.fault(signed) is None
    assert actions(database) == ["plan.applied"] * 3


def test_no_signature_follows_a_head_that_was_not_signed(tmp_path: Path) -> None:
    unsigned = keyed(tmp_path, None)
    append(unsigned)
    signing = keyed(tmp_path, AuditKeys(tmp_path / "a.pem"))
    append(signing)
    assert actions(signing) == ["plan.applied", "audit.head_unsigned", "plan.applied"]
    append(keyed(tmp_path, AuditKeys(tmp_path / "b.pem")))
    assert actions(signing)[3:] == ["audit.head_invalid", "plan.applied"]
