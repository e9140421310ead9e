"""Whatever a writer of the store does to the log, the signed end or an anchor shows it."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import URL, Connection, delete, insert, update
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
    move_end(connection, seq=len(entries), digest=previous)


def forged(entry: AuditEntry, **changes: object) -> AuditEntry:
    """Return an entry with other details, and the digest that fits them."""
    assert entry.details is not None
    details: Details = replace(entry.details, **changes)  # type: ignore[arg-type]
    return replace(entry, details=details, details_digest=details.digest())


def change(connection: Connection, seq: int, chain: str = "audit", **values: object) -> None:
    of = chain_links.c
    connection.execute(update(chain_links).where(of.chain == chain, of.seq == seq).values(values))


def move_end(connection: Connection, chain: str = "audit", **values: object) -> None:
    connection.execute(update(chain_heads).where(chain_heads.c.chain == chain).values(values))


def change_a_detail_with_its_digest(connection: Connection) -> None:
    entry = forged(stored(connection)[4], actor="eve")
    change(connection, 5, actor="eve", details_digest=entry.details_digest, digest=entry.expected_digest())


def take_out(connection: Connection, *seqs: int) -> None:
    connection.execute(delete(chain_links).where(chain_links.c.seq.in_(seqs)))


def arranged(order: Callable[[list[AuditEntry]], Sequence[AuditEntry]]) -> Attack:
    """Return an attack that writes the chain again, with other entries or in another order."""
    return lambda connection: rewrite(connection, order(stored(connection)))


def eves(entries: Sequence[AuditEntry]) -> list[AuditEntry]:
    return [forged(entry, actor="eve") for entry in entries]


def append_unsigned(connection: Connection, *erases: int) -> None:
    event = AuditEvent(actor="eve", action="plan.applied")
    chain.append(connection.execution_options(prolepsis_audit_keys=None), [event], erases)


def erase(connection: Connection) -> None:
    nothing: dict[str, Any] = dict.fromkeys(("actor", "tenant", "subject", "before", "after", "salt"))
    change(connection, 7, **nothing)


def erase_with_a_forged_reason(connection: Connection) -> None:
    erase(connection)
    append_unsigned(connection, 7)


def sign_with_another_key(connection: Connection) -> None:
    append_unsigned(connection)
    with TemporaryDirectory() as folder:
        signed = AuditKeys(Path(folder) / "eve.pem").sign("audit", *chain.head(connection))
    move_end(connection, signed_at=signed.at, key_id=signed.key_id, signature=signed.signature)


def empty_the_log(connection: Connection) -> None:
    connection.execute(delete(chain_links))
    move_end(connection, seq=0, digest="0" * 64, key_id=None, signature=None)


ATTACKS: dict[str, Attack] = {
    "a detail": lambda connection: change(connection, 5, actor="eve"),
    "a detail with its digest": change_a_detail_with_its_digest,
    "the time": lambda connection: change(connection, 6, at="2020-01-01T00:00:00.000000"),
    "a version": lambda connection: change(connection, 6, versions=canonical({"policy": "other"})),
    "one out": lambda connection: take_out(connection, 7),
    "one out and the gap closed": arranged(lambda entries: [*entries[:6], *entries[7:]]),
    "one in": arranged(lambda all_: [*all_[:6], replace(eves(all_)[0], uid="f" * 32), *all_[6:]]),
    "two swapped": arranged(lambda entries: [*entries[:5], entries[6], entries[5], *entries[7:]]),
    "rewritten from the middle": arranged(lambda entries: [*entries[:5], *eves(entries[5:])]),
    "everything replaced": arranged(eves),
    "emptied": empty_the_log,
    "the end cut off": arranged(lambda entries: entries[:9]),
    "erased without saying so": erase,
    "erased with a forged reason": erase_with_a_forged_reason,
    "one appended": append_unsigned,
    "signed with another key": sign_with_another_key,
    "the signature gone": lambda connection: move_end(connection, signed_at=None, key_id=None, signature=None),
    "the head moved": lambda connection: move_end(connection, seq=11, digest=links.digest_at(connection, 11)),
}


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_seen(log: Log, attack: str, goes_on: bool) -> None:
    """The next signature must not cover it: the writer looks at the head that it follows."""
    with log.database.write() as connection:
        ATTACKS[attack](connection)
    for number in range(NUM_ENTRIES if goes_on else 0):
        with suppress(IntegrityError):  # a head before the last entry: the writer reports what it cannot append
            log.append(number)
    assert log.verified().faults


def test_an_end_put_back_to_an_earlier_signed_one_is_seen_by_a_newer_anchor(log: Log) -> None:
    earlier = log.heads[1]
    with log.database.write() as connection:
        connection.execute(delete(chain_links).where(chain_links.c.seq > earlier.seq))
        signed: dict[str, Any] = {"signed_at": earlier.at, "key_id": earlier.key_id, "signature": earlier.signature}
        move_end(connection, seq=earlier.seq, digest=earlier.digest, **signed)
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
