"""Whatever a writer of the store does to request records, their chain and its anchors show it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import ColumnElement, Connection, delete, insert, select, update

from prolepsis.audit.verify import Anchor
from prolepsis.audit.verify_records import RecordsVerified, verify_records
from prolepsis.store import record_chain as links
from prolepsis.store import records
from prolepsis.store.database import Database
from prolepsis.store.signing import OPTION, AuditKeys
from prolepsis.store.tables import record_chain, record_head, request_records
from tests.audit.test_tampering import in_memory
from tests.store.fakes import record


class Kept:
    """Records with anchors, and what verification says of them."""

    def __init__(self, folder: Path) -> None:
        self.keys = AuditKeys(folder / "audit-key.pem")
        self.database: Database = in_memory(self.keys)
        self.anchors: list[Anchor] = []

    def add(self, *tenants: str) -> None:
        with self.database.write() as connection:
            records.add(connection, [record(tenant) for tenant in tenants])
            self.anchors.append(Anchor(*links.head(connection)))

    def verified(self) -> RecordsVerified:
        with self.database.read() as connection:
            return verify_records(connection, self.anchors, self.keys.public)


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    made = Kept(tmp_path)
    for _ in range(3):
        made.add("acme", "other")
    found = made.verified()
    assert (found.num_records, found.anchored, found.faults) == (6, 6, ())
    return made


def test_deletions_are_on_record(kept: Kept) -> None:
    assert records.forget(kept.database, "acme") == 3
    found = kept.verified()
    assert (found.num_records, found.num_deleted, found.faults) == (3, 3, ())
    kept.add("acme")
    assert records.prune(kept.database, 1e12) == 4
    found = kept.verified()
    assert (found.num_records, found.num_deleted, found.faults) == (0, 7, ())
    with kept.database.read() as connection:
        assert set(connection.scalars(select(record_chain.c.record_id))) == {None}, "no id that a guess needs"


def test_a_column_that_a_later_version_adds_changes_no_digest() -> None:
    row = record("acme").row
    assert links.content_digest({**row, "added": None}) == links.content_digest(row)
    assert links.content_digest({**row, "tenant": None}) != links.content_digest(row)


def unsigned(connection: Connection) -> Connection:
    return connection.execution_options(**{OPTION: None})


def some(connection: Connection, seq: int = 3) -> str:
    return str(connection.scalar(select(record_chain.c.record_id).where(record_chain.c.seq == seq)))


def change_a_record(connection: Connection) -> None:
    connection.execute(update(request_records).values(num_output_tokens=1).where(_is(some(connection))))


def change_a_record_and_its_link(connection: Connection) -> None:
    change_a_record(connection)
    row = connection.execute(select(request_records).where(_is(some(connection)))).mappings().one()
    link = record_chain.c.seq == 3
    connection.execute(update(record_chain).where(link).values(content_digest=links.content_digest(dict(row))))


def delete_a_record(connection: Connection) -> None:
    connection.execute(delete(request_records).where(_is(some(connection))))


def delete_a_record_and_its_link(connection: Connection) -> None:
    delete_a_record(connection)
    connection.execute(delete(record_chain).where(record_chain.c.seq == 3))


def delete_with_a_forged_reason(connection: Connection) -> None:
    record_id = some(connection)
    links.append_deletion(unsigned(connection), [record_id])
    connection.execute(delete(request_records).where(_is(record_id)))


def add_a_record_without_a_link(connection: Connection) -> None:
    connection.execute(insert(request_records), [record("eve").row])


def add_a_record_with_a_link(connection: Connection) -> None:
    records.add(unsigned(connection), [record("eve")])


def damage_what_a_link_deletes(connection: Connection) -> None:
    connection.execute(update(record_chain).where(record_chain.c.seq == 3).values(deletes="{"))


def cut_the_end(connection: Connection) -> None:
    for seq in (5, 6):
        connection.execute(delete(request_records).where(_is(some(connection, seq))))
    connection.execute(delete(record_chain).where(record_chain.c.seq > 4))
    connection.execute(update(record_head).values(seq=4, digest=links.digest_at(connection, 4)))


def delete_everything(connection: Connection) -> None:
    for table in (request_records, record_chain):
        connection.execute(delete(table))
    connection.execute(update(record_head).values(seq=0, digest=links.START, signature=None))


def _is(record_id: str) -> ColumnElement[bool]:
    return request_records.c.record_id == record_id


ATTACKS: list[Callable[[Connection], None]] = [
    change_a_record,
    change_a_record_and_its_link,
    delete_a_record,
    delete_a_record_and_its_link,
    delete_with_a_forged_reason,
    add_a_record_without_a_link,
    add_a_record_with_a_link,
    damage_what_a_link_deletes,
    cut_the_end,
    delete_everything,
]


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_seen(kept: Kept, attack: Callable[[Connection], None], goes_on: bool) -> None:
    with kept.database.write() as connection:
        attack(connection)
    if goes_on:
        anchors = list(kept.anchors)
        kept.add(*["acme"] * 9)
        kept.anchors = anchors
    assert kept.verified().faults
