"""Whatever is changed in the store is found, and erasing on demand is no change."""

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from prolepsis.control.audit import chain
from prolepsis.control.audit.log import forget_tenant
from prolepsis.control.audit.verify import Anchor, ChainEvidence, Verified, parse_anchor, verify, verify_records
from prolepsis.control.store import links, record_chain, records
from prolepsis.control.store.database import Database
from prolepsis.control.store.signing import OPTION, AuditKeys
from prolepsis.control.store.tables import chain_heads, chain_links, request_records
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter
from tests.control.audit.test_tampering import change, in_memory, move_end
from tests.control.store.fakes import latest_records, record

OF_RECORDS = chain_links.c.chain == "requests"
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
def written(sqlite_database: Database) -> Database:
    return write_five(sqlite_database)


def write_five(database: Database) -> Database:
    """Write five entries, every second about a tenant."""
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
        evidence = ChainEvidence(head=Anchor(*chain.head(connection)), anchors=[] if anchor is None else [anchor])
        return verify(chain.entries(connection), evidence)


def test_the_test_changes_every_column() -> None:
    assert set(OTHER) == set(chain_links.columns.keys()) - {"chain", "record_id"}


def test_a_change_of_any_field_of_any_entry_is_found(written: Database) -> None:
    for column, seq in product(OTHER, (1, 2, 5)):
        here = chain_links.c.seq == seq
        values = [OTHER[column]] if column in ("seq", "uid") else [OTHER[column], _nothing(column)]
        for value in values:
            with written.write() as connection:
                before = connection.execute(select(chain_links).where(here)).mappings().one()
                if before[column] == value:  # of the first entry, which follows nothing
                    continue
                connection.execute(update(chain_links).where(here).values({column: value}))
            assert verified(written).faults, (seq, column, value)
            with written.write() as connection:
                there = chain_links.c.seq == (value if column == "seq" else seq)
                connection.execute(update(chain_links).where(there).values({column: before[column]}))
    assert verified(written).faults == ()


def _nothing(column: str) -> str | None:
    return None if chain_links.columns[column].nullable else ""


def test_a_chain_that_was_written_again_is_found_by_an_anchor(written: Database) -> None:
    anchor = verified(written).head
    with written.write() as connection:
        connection.execute(delete(chain_links))
        connection.execute(update(chain_heads).values(seq=0, digest="0" * 64))
        chain.append(connection, [AuditEvent(actor="eve", action="plan.applied") for _ in range(5)])
    assert verified(written).faults == ()
    assert [fault.seq for fault in verified(written, anchor=anchor).faults] == [5]


def test_a_tenant_is_forgotten_and_the_chain_verifies(database: Database) -> None:
    written = write_five(database)
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
        connection.execute(update(chain_links).where(chain_links.c.seq == 2).values(erases=erases))
    assert [(fault.seq, fault.what) for fault in verified(written).faults] == [(2, "has been changed")]


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


class Kept:
    """Records with anchors, and what verification says of them."""

    def __init__(self, folder: Path) -> None:
        self.keys = AuditKeys(folder / "audit-key.pem")
        self.database: Database = in_memory(self.keys)
        self.anchors: list[Anchor] = []

    def add(self, *tenants: str) -> None:
        with self.database.write() as connection:
            records.add(connection, [record(tenant) for tenant in tenants])
            self.anchors.append(Anchor(*links.head(connection, "requests")))

    def verified(self) -> Verified:
        with self.database.read() as connection:
            return verify_records(connection, self.anchors, self.keys.public)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    made = Kept(tmp_path)
    for _ in range(3):
        made.add("acme", "other")
    found = made.verified()
    assert (found.num_entries, found.anchored, found.faults) == (6, 6, ())
    return made


def test_deletions_are_on_record(kept: Kept) -> None:
    assert records.forget(kept.database, "acme") == 3
    found = kept.verified()
    assert (found.num_entries, found.num_erased, found.faults) == (7, 3, ())
    kept.add("acme")
    assert records.prune(kept.database, 1e12) == 4
    found = kept.verified()
    assert (found.num_entries, found.num_erased, found.faults) == (9, 7, ())
    with kept.database.read() as connection:
        assert set(connection.scalars(select(chain_links.c.record_id))) == {None}, "no id that a guess needs"


def test_a_column_that_a_later_version_adds_changes_no_digest() -> None:
    row = record("acme").row
    assert record_chain.content_digest({**row, "added": None}) == record_chain.content_digest(row)
    assert record_chain.content_digest({**row, "tenant": None}) != record_chain.content_digest(row)


def record_of(connection: Connection, seq: int = 3) -> ColumnElement[bool]:
    linked = select(chain_links.c.record_id).where(OF_RECORDS, chain_links.c.seq == seq)
    return request_records.c.record_id == connection.scalar(linked)


def change_a_record(connection: Connection) -> None:
    connection.execute(update(request_records).values(num_output_tokens=1).where(record_of(connection)))


def change_a_record_and_its_link(connection: Connection) -> None:
    change_a_record(connection)
    row = connection.execute(select(request_records).where(record_of(connection))).mappings().one()
    change(connection, 3, "requests", details_digest=record_chain.content_digest(dict(row)))


def delete_records(connection: Connection, *seqs: int) -> None:
    for seq in seqs:
        connection.execute(delete(request_records).where(record_of(connection, seq)))


def delete_links(connection: Connection, *seqs: int) -> None:
    delete_records(connection, *seqs)
    connection.execute(delete(chain_links).where(OF_RECORDS, chain_links.c.seq.in_(seqs)))


def delete_with_a_forged_reason(connection: Connection) -> None:
    here = record_of(connection)
    record_id = str(connection.scalar(select(request_records.c.record_id).where(here)))
    record_chain.append_deletion(connection.execution_options(**{OPTION: None}), [record_id])
    connection.execute(delete(request_records).where(here))


def cut_the_end(connection: Connection) -> None:
    delete_links(connection, 5, 6)
    move_end(connection, "requests", seq=4, digest=links.digest_at(connection, 4, "requests"))


def delete_everything(connection: Connection) -> None:
    delete_links(connection, *range(1, 7))
    move_end(connection, "requests", seq=0, digest=links.START_OF_CHAIN, signature=None)


ATTACKS: dict[str, Callable[[Connection], object]] = {
    "a record": change_a_record,
    "a record and its link": change_a_record_and_its_link,
    "a record gone": lambda connection: delete_records(connection, 3),
    "a record gone with its link": lambda connection: delete_links(connection, 3),
    "a record gone with a forged reason": delete_with_a_forged_reason,
    "a record without a link": lambda connection: connection.execute(insert(request_records), [record("eve").row]),
    "a record with a link": lambda connection: records.add(
        connection.execution_options(**{OPTION: None}), [record("eve")]
    ),
    "what a link deletes": lambda connection: change(connection, 3, "requests", erases="{"),
    "the end cut off": cut_the_end,
    "everything gone": delete_everything,
}


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_seen(kept: Kept, attack: str, goes_on: bool) -> None:
    with kept.database.write() as connection:
        ATTACKS[attack](connection)
    if goes_on:
        anchors = list(kept.anchors)
        kept.add(*["acme"] * 9)
        kept.anchors = anchors
    assert kept.verified().faults
