"""Whatever is changed in the store is found, and erasing on demand is no change."""

from itertools import product

import pytest
from sqlalchemy import delete, select, update

from prolepsis.audit import chain
from prolepsis.audit.log import forget_tenant
from prolepsis.audit.verify import Anchor, Evidence, Verified, parse_anchor, verify
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter
from prolepsis.store import records
from prolepsis.store.database import Database
from prolepsis.store.tables import audit_entries, audit_head
from tests.store.fakes import latest_records, record

OTHER = {
    "seq": 77,
    "uid": "0" * 32,
    "at": "2020-01-01T00:00:00.000000+00:00",
    "action": "nothing.done",
    "versions": '{"policy":"other"}',
    "erases": "[1]",
    "actor": "somebody else",
    "tenant": "other",
    "subject": "other",
    "before": '{"mode":"on"}',
    "after": "not even JSON",
    "salt": "0" * 64,
    "details_digest": "0" * 64,
    "previous": "0" * 64,
    "digest": "0" * 64,
}


@pytest.fixture
def written(database: Database) -> Database:
    """Five entries, every second about a tenant."""
    with database.write() as connection:
        for i in range(1, 6):
            act = AuditEvent(
                actor="ann",
                action="plan.applied",
                subject="plan",
                before={"n": i},
                after={"n": i + 1},
                tenant="acme" if i % 2 else "",
                versions={"policy": str(i)},
            )
            chain.append(connection, [act])
    return database


def verified(database: Database, anchor: Anchor | None = None) -> Verified:
    with database.read() as connection:
        evidence = Evidence(head=Anchor(*chain.head(connection)), anchors=[] if anchor is None else [anchor])
        return verify(chain.entries(connection), evidence)


def test_a_chain_as_it_was_written_verifies(written: Database) -> None:
    found = verified(written)
    assert (found.head.seq, found.num_entries, found.num_erased, found.faults) == (5, 5, 0, ())
    assert verified(written, anchor=found.head).faults == ()


def test_the_test_changes_every_column() -> None:
    assert set(OTHER) == set(audit_entries.columns.keys())


def test_a_change_of_any_field_of_any_entry_is_found(written: Database) -> None:
    for column, seq in product(OTHER, (1, 2, 5)):
        here = audit_entries.c.seq == seq
        values = [OTHER[column]] if column in ("seq", "uid") else [OTHER[column], _nothing(column)]
        for value in values:
            with written.write() as connection:
                before = connection.execute(select(audit_entries).where(here)).mappings().one()
                if before[column] == value:  # of the first entry, which follows nothing
                    continue
                connection.execute(update(audit_entries).where(here).values({column: value}))
            assert verified(written).faults, (seq, column, value)
            with written.write() as connection:
                there = audit_entries.c.seq == (value if column == "seq" else seq)
                connection.execute(update(audit_entries).where(there).values({column: before[column]}))
    assert verified(written).faults == ()


def _nothing(column: str) -> str | None:
    return None if audit_entries.columns[column].nullable else ""


def test_an_entry_that_is_taken_out_is_found(written: Database) -> None:
    with written.write() as connection:
        connection.execute(delete(audit_entries).where(audit_entries.c.seq == 3))
    assert {fault.seq for fault in verified(written).faults} == {4}


def test_an_end_that_is_cut_off_is_found_by_the_head_or_an_anchor(written: Database) -> None:
    anchor = verified(written).head
    with written.write() as connection:
        connection.execute(delete(audit_entries).where(audit_entries.c.seq == 5))
    assert [fault.seq for fault in verified(written).faults] == [4]
    with written.write() as connection:
        last = connection.scalar(select(audit_entries.c.digest).where(audit_entries.c.seq == 4))
        connection.execute(update(audit_head).values(seq=4, digest=last))
    assert verified(written).faults == ()
    assert ["cut off" in fault.what for fault in verified(written, anchor=anchor).faults] == [True]


def test_a_chain_that_was_written_anew_is_found_by_an_anchor(written: Database) -> None:
    anchor = verified(written).head
    with written.write() as connection:
        connection.execute(delete(audit_entries))
        connection.execute(update(audit_head).values(seq=0, digest="0" * 64))
        chain.append(connection, [AuditEvent(actor="eve", action="plan.applied") for _ in range(5)])
    assert verified(written).faults == ()
    assert [fault.seq for fault in verified(written, anchor=anchor).faults] == [5]


def test_a_tenant_is_forgotten_and_the_chain_verifies(written: Database) -> None:
    with written.write() as connection:
        records.add(connection, [record("acme"), record("acme"), record("other")])
    anchor = verified(written).head
    forgotten = forget_tenant(written, "acme", "ann")
    assert (forgotten.num_records, forgotten.entry.erases) == (2, (1, 3, 5))
    found = verified(written, anchor)
    assert (found.num_entries, found.num_erased, found.faults) == (6, 3, ())
    with written.read() as connection:
        assert [kept.tenant for kept in latest_records(connection, 10)] == ["other"]
        shown = [entry.plain() for entry in chain.entries(connection)]
        assert [entry["details"] is None for entry in shown] == [True, False, True, False, True, False]
        assert "acme" not in str(shown)
    again = forget_tenant(written, "acme", "ann")
    assert (again.num_records, again.entry.erases) == (0, ())
    assert verified(written).faults == ()


@pytest.mark.parametrize("erases", ["[[1]]", '[{"a": 1}]', "[true]", "1", "[", "[" * 100_000])
def test_a_damaged_list_of_erased_entries_is_a_fault_and_no_crash(written: Database, erases: str) -> None:
    with written.write() as connection:
        connection.execute(update(audit_entries).where(audit_entries.c.seq == 2).values(erases=erases))
    assert [(fault.seq, fault.what) for fault in verified(written).faults] == [(2, "has been changed")]


def test_erasing_without_an_entry_that_says_so_is_found(written: Database) -> None:
    details = ("actor", "tenant", "subject", "before", "after", "salt")
    with written.write() as connection:
        connection.execute(update(audit_entries).where(audit_entries.c.seq == 2).values(dict.fromkeys(details)))
    [fault] = verified(written).faults
    assert fault.seq == 2
    assert "erased" in fault.what


def test_the_tenant_without_a_name_is_not_forgotten(written: Database) -> None:
    with pytest.raises(InvalidParameter):
        forget_tenant(written, "", "ann")
    assert verified(written).num_erased == 0


def test_an_anchor_is_read_as_it_is_printed() -> None:
    anchor = Anchor(5, "ab" * 32)
    assert parse_anchor(str(anchor)) == anchor
    for text in ("", "5", "5:ab", "x:" + "ab" * 32):
        with pytest.raises(InvalidParameter, match="NUMBER:DIGEST"):
            parse_anchor(text)
