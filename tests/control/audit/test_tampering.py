"""Whatever a writer of the store does to the log, the signed end or an anchor shows it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from sqlalchemy import URL, Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import AuditEntry, Details
from prolepsis.control.audit.verify import Anchor, ChainEvidence, Verified, verify
from prolepsis.control.store import links
from prolepsis.control.store.database import Database
from prolepsis.control.store.signing import OPTION, AuditKeys, SignedHead
from prolepsis.control.store.tables import chain_heads, chain_links, metadata
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.json_value import canonical
from tests.control.store.test_signing import keyed

NUM_ENTRIES = 12
OF_ACTS = chain_heads.c.chain == "audit"
ANCHORED = (4, 8, 12)
"""Entries after which an anchor is taken."""


@dataclass
class Log:
    """A signed chain of entries with anchors, and the attacker's view of it: the whole store, but no private key."""

    database: Database
    keys: AuditKeys
    heads: list[SignedHead]

    def append(self, number: int) -> None:
        event = AuditEvent(actor="ann", action="plan.applied", after={"n": number}, tenant="acme" if number % 2 else "")
        with self.database.write() as connection:
            chain.append(connection, [event])

    def verified(self, heads: Sequence[SignedHead] | None = None) -> Verified:
        anchors = [Anchor(head.seq, head.digest) for head in (self.heads if heads is None else heads)]
        with self.database.read() as connection:
            end, signed = Anchor(*chain.head(connection)), chain.signed_head(connection)
            return verify(chain.entries(connection), ChainEvidence(end, signed, self.keys.public, anchors))

    def anchor(self) -> None:
        with self.database.read() as connection:
            head = chain.signed_head(connection)
        assert head is not None
        self.heads.append(head)


def in_memory(keys: AuditKeys) -> Database:
    """Return an empty store in memory, whose writers sign."""
    database = Database(URL.create("sqlite"), options={OPTION: keys})
    with database.write() as connection:
        metadata.create_all(connection)
        links.begin(connection)
    return database


@pytest.fixture
def log(tmp_path: Path) -> Log:
    keys = AuditKeys(tmp_path / "audit-key.pem")
    made = Log(in_memory(keys), keys, [])
    for number in range(1, NUM_ENTRIES + 1):
        made.append(number)
        if number in ANCHORED:
            made.anchor()
    assert (made.verified().faults, made.verified().unproven, made.verified().anchored) == ((), (), NUM_ENTRIES)
    return made


Attack = Callable[[Connection], None]


def stored(connection: Connection) -> list[AuditEntry]:
    return list(chain.entries(connection))


def rewrite(connection: Connection, entries: Sequence[AuditEntry]) -> None:
    """Replace the chain by these entries, with numbers, links and digests that fit, and its head."""
    connection.execute(delete(chain_links))
    previous = "0" * 64
    for number, entry in enumerate(entries, 1):
        linked = replace(entry, seq=number, previous=previous)
        linked = replace(linked, digest=linked.expected_digest())
        connection.execute(insert(chain_links), [{"chain": "audit", **linked.columns()}])
        previous = linked.digest
    connection.execute(update(chain_heads).where(OF_ACTS).values(seq=len(entries), digest=previous))


def forged(entry: AuditEntry, **changes: object) -> AuditEntry:
    """Return an entry with other details, and the digest that fits them."""
    assert entry.details is not None
    details: Details = replace(entry.details, **changes)  # type: ignore[arg-type]
    return replace(entry, details=details, details_digest=details.digest())


def change_a_detail(connection: Connection) -> None:
    connection.execute(update(chain_links).where(chain_links.c.seq == 5).values(actor="eve"))


def change_a_detail_with_its_digest(connection: Connection) -> None:
    entry = forged(stored(connection)[4], actor="eve")
    row = {"actor": "eve", "details_digest": entry.details_digest, "digest": entry.expected_digest()}
    connection.execute(update(chain_links).where(chain_links.c.seq == 5).values(row))


def change_the_time(connection: Connection) -> None:
    connection.execute(update(chain_links).where(chain_links.c.seq == 6).values(at="2020-01-01T00:00:00.000000"))


def change_a_version(connection: Connection) -> None:
    versions = canonical({"policy": "other"})
    connection.execute(update(chain_links).where(chain_links.c.seq == 6).values(versions=versions))


def take_one_out(connection: Connection) -> None:
    connection.execute(delete(chain_links).where(chain_links.c.seq == 7))


def take_one_out_and_close_the_gap(connection: Connection) -> None:
    entries = stored(connection)
    rewrite(connection, [*entries[:6], *entries[7:]])


def put_one_in(connection: Connection) -> None:
    entries = stored(connection)
    added = replace(forged(entries[0], actor="eve"), uid="f" * 32)
    rewrite(connection, [*entries[:6], added, *entries[6:]])


def swap_two(connection: Connection) -> None:
    entries = stored(connection)
    rewrite(connection, [*entries[:5], entries[6], entries[5], *entries[7:]])


def rewrite_from_the_middle(connection: Connection) -> None:
    entries = stored(connection)
    rewrite(connection, [*entries[:5], *(forged(entry, actor="eve") for entry in entries[5:])])


def replace_everything(connection: Connection) -> None:
    rewrite(connection, [forged(entry, actor="eve") for entry in stored(connection)])


def empty_the_log(connection: Connection) -> None:
    connection.execute(delete(chain_links))
    connection.execute(update(chain_heads).where(OF_ACTS).values(seq=0, digest="0" * 64, key_id=None, signature=None))


def cut_the_end(connection: Connection) -> None:
    rewrite(connection, stored(connection)[:9])


def erase_without_saying_so(connection: Connection) -> None:
    nothing = dict.fromkeys(("actor", "tenant", "subject", "before", "after", "salt"))
    connection.execute(update(chain_links).where(chain_links.c.seq == 7).values(nothing))


def erase_with_a_forged_reason(connection: Connection) -> None:
    erase_without_saying_so(connection)
    chain.append(connection.execution_options(prolepsis_audit_keys=None), [AuditEvent(actor="", action="x")], [7])


def append_one(connection: Connection) -> None:
    event = AuditEvent(actor="eve", action="plan.applied")
    chain.append(connection.execution_options(prolepsis_audit_keys=None), [event])


def sign_with_another_key(connection: Connection) -> None:
    append_one(connection)
    end = chain.head(connection)
    with TemporaryDirectory() as folder:
        signed = AuditKeys(Path(folder) / "eve.pem").sign("audit", *end)
    values = {"signed_at": signed.at, "key_id": signed.key_id, "signature": signed.signature}
    connection.execute(update(chain_heads).where(OF_ACTS).values(values))


def take_the_signature_away(connection: Connection) -> None:
    connection.execute(update(chain_heads).where(OF_ACTS).values(signed_at=None, key_id=None, signature=None))


def move_the_head(connection: Connection) -> None:
    digest = connection.scalar(select(chain_links.c.digest).where(chain_links.c.seq == 11))
    connection.execute(update(chain_heads).where(OF_ACTS).values(seq=11, digest=digest))


ATTACKS: list[Attack] = [
    change_a_detail,
    change_a_detail_with_its_digest,
    change_the_time,
    change_a_version,
    take_one_out,
    take_one_out_and_close_the_gap,
    put_one_in,
    swap_two,
    rewrite_from_the_middle,
    replace_everything,
    empty_the_log,
    cut_the_end,
    erase_without_saying_so,
    erase_with_a_forged_reason,
    append_one,
    sign_with_another_key,
    take_the_signature_away,
    move_the_head,
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_seen(log: Log, attack: Attack) -> None:
    with log.database.write() as connection:
        attack(connection)
    assert log.verified().faults


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_an_attack_is_seen_after_the_server_wrote_on(log: Log, attack: Attack) -> None:
    """The next signature must not cover it: the writer looks at the head that it follows."""
    with log.database.write() as connection:
        attack(connection)
    for number in range(NUM_ENTRIES):
        with suppress(IntegrityError):  # a head before the last entry: the writer reports what it cannot append
            log.append(number)
    assert log.verified().faults


def test_an_end_put_back_to_an_earlier_signed_one_is_seen_by_a_newer_anchor(log: Log) -> None:
    earlier = log.heads[1]
    with log.database.write() as connection:
        connection.execute(delete(chain_links).where(chain_links.c.seq > earlier.seq))
        values = {"seq": earlier.seq, "digest": earlier.digest, "signed_at": earlier.at}
        connection.execute(
            update(chain_heads).where(OF_ACTS).values(**values, key_id=earlier.key_id, signature=earlier.signature)
        )
    assert log.verified(log.heads[:2]).faults == (), "the store alone looks as it did then"
    assert ["cut off" in fault.what for fault in log.verified().faults] == [True]


def test_without_anchors_or_keys_it_is_said_what_is_not_proven(log: Log) -> None:
    [without_anchor] = log.verified([]).unproven
    assert "the whole chain was not replaced or its end cut off" in without_anchor
    with log.database.read() as connection:
        entries = list(chain.entries(connection))
    evidence = ChainEvidence(anchors=[Anchor(12, entries[-1].digest)])
    [without_key] = verify(entries, evidence).unproven
    assert "public key" in without_key


def test_entries_from_before_there_were_signatures_are_told_apart(tmp_path: Path) -> None:
    keys = AuditKeys(tmp_path / "config" / "audit-key.pem")
    for signing in (None, keys):
        Log(keyed(tmp_path, signing), keys, []).append(1)
    upgraded = Log(keyed(tmp_path, keys), keys, [])
    upgraded.anchor()
    found = upgraded.verified()
    assert found.faults == ()
    assert [what for what in found.unproven if "before 2" in what]
