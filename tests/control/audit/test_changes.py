"""What was changed in the last day, from the audit log."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import update

from prolepsis.control.audit import chain
from prolepsis.control.audit.changes import RecentChanges, is_change
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import chain_links
from prolepsis.core.audit_event import SERVER, AuditEvent

NOW = 1_800_000_000.0
HOUR = 3600.0


def append(database: Database, *events: AuditEvent, ago_s: float = 0.0) -> list[int]:
    """Append events as if that long before `NOW`; return their numbers."""
    at = (datetime.fromtimestamp(NOW, UTC) - timedelta(seconds=ago_s)).isoformat(timespec="microseconds")
    with database.write() as connection:
        seqs = [entry.seq for entry in chain.append(connection, events)]
        connection.execute(update(chain_links).where(chain_links.c.seq.in_(seqs)).values(at=at))
    return seqs


def swapped(before: str, after: str, actor: str = "ann") -> AuditEvent:
    named = {"head": after, "asked": after, "reason": "better"}
    return AuditEvent(actor=actor, action="head.swapped", subject="draft_head", before={"head": before}, after=named)


def test_changes_of_the_last_day_come_newest_first_and_each_once(sqlite_database: Database) -> None:
    changes = RecentChanges(sqlite_database, lambda: NOW)
    assert changes.read().changes == []
    append(sqlite_database, swapped("a@1", "a@2"), ago_s=25 * HOUR)
    append(sqlite_database, AuditEvent(actor="acme", action=SERVED), ago_s=2 * HOUR)
    (first,) = append(sqlite_database, swapped("a@2", "a@3"), ago_s=2 * HOUR)
    assert [one.seq for one in changes.read().changes] == [first]
    assert [one.seq for one in RecentChanges(sqlite_database, lambda: NOW).read().changes] == [first]
    (second,) = append(sqlite_database, swapped("a@3", "a@2"), ago_s=HOUR)
    [newest, older] = changes.read().changes
    assert (newest.seq, older.seq) == (second, first)
    assert (newest.actor, newest.subject, newest.what, newest.reason) == (
        *("ann", "draft_head"),
        *("head a@3 -> a@2", "better"),
    )
    later = RecentChanges(sqlite_database, lambda: NOW + 22.5 * HOUR)
    assert [one.seq for one in later.read().changes] == [second]


@pytest.mark.parametrize("num_older", [0, 1, 7, 64])
def test_the_first_entry_of_the_day_is_found_behind_older_ones(database: Database, num_older: int) -> None:
    append(database, *(swapped("a@1", "a@2") for _ in range(num_older)), ago_s=30 * HOUR)
    since = datetime.fromtimestamp(NOW - 24 * HOUR, UTC)
    seqs = append(database, *(swapped("a@1", "a@2") for _ in range(3)), ago_s=HOUR)
    with database.read() as connection:
        assert chain.last_before(connection, since) == num_older
    assert [one.seq for one in RecentChanges(database, lambda: NOW).read().changes] == seqs[::-1]


def test_a_change_taken_over_by_replicas_is_listed_once(sqlite_database: Database) -> None:
    versions = {"policy": "1@abc"}
    taken = AuditEvent(actor=SERVER, action="policy.reloaded", versions=versions)
    of_file = AuditEvent(actor=SERVER, action="policy.reloaded", versions={"policy": "2@def"})
    applied = AuditEvent(actor="ann", action="policy.applied", subject="version 1", versions=versions)
    append(sqlite_database, applied, taken, of_file)
    assert [one.action for one in RecentChanges(sqlite_database, lambda: NOW).read().changes] == [
        "policy.reloaded",
        "policy.applied",
    ]


def test_a_stop_by_the_controls_file_is_listed_once_where_a_server_followed(sqlite_database: Database) -> None:
    act = {"on": True, "reason": "drill"}
    server = AuditEvent(
        actor="ann",
        action="kill.on",
        subject="controls.json",
        before={"killed": [], "operator": []},
        after={"killed": ["everything"], "operator": [{"scope": "everything", "reason": "drill"}]},
    )
    alone, followed = (
        AuditEvent(actor="command line, ann", action="kill.on", subject="controls.json", after=act) for _ in range(2)
    )
    append(sqlite_database, alone, ago_s=HOUR)
    append(sqlite_database, server, followed)
    listed = [(one.actor, one.reason) for one in RecentChanges(sqlite_database, lambda: NOW).read().changes]
    assert listed == [("ann", "drill"), ("command line, ann", "drill")]


def test_a_change_of_the_policy_is_reported_by_its_version(sqlite_database: Database) -> None:
    after = {"version": 2, "digest": "ab" * 32, "reason": "longer drafts"}
    first = AuditEvent(actor="ann", action="policy.applied", subject="version 1", after={**after, "version": 1})
    second = AuditEvent(
        actor="ann", action="policy.applied", subject="version 2", before={"version": 1, "digest": "c"}, after=after
    )
    append(sqlite_database, first, second)
    [newest, older] = RecentChanges(sqlite_database, lambda: NOW).read().changes
    assert (newest.what, newest.reason, older.what) == ("version 1 -> 2", "longer drafts", "")


def test_the_kill_switch_tells_its_scopes_and_the_reason_of_the_new_one(sqlite_database: Database) -> None:
    old = {"scope": "route:/v1/completions", "by": "bob", "reason": "old"}
    new = {"scope": "proposer:draft_head", "by": "ann", "reason": "damaged"}
    before = {"killed": [old["scope"]], "shared": [old], "operator": []}
    after = {"killed": [old["scope"], new["scope"]], "shared": [old, new], "operator": []}
    append(sqlite_database, AuditEvent(actor="ann", action="kill.on", before=before, after=after))
    [change] = RecentChanges(sqlite_database, lambda: NOW).read().changes
    assert (change.what, change.reason) == ("stopped proposer:draft_head", "damaged")


@pytest.mark.parametrize(
    ("action", "actor", "expected"),
    [
        ("head.swapped", "ann", True),
        ("server.started", SERVER, True),
        ("policy.loaded", SERVER, False),
        ("prices.loaded", SERVER, False),
        ("prices.reloaded", SERVER, True),
        ("breaker.forced_open", "ann", True),
        ("breaker.open", SERVER, False),
        ("drift.cliff", SERVER, False),
        ("drift.reset", "ann", True),
        ("console.signed_in", "ann", False),
    ],
)
def test_a_change_is_a_cause_and_no_effect(action: str, actor: str, expected: bool) -> None:
    assert is_change(action, actor) is expected
