"""Verification of the chain over request records: is each record as it was written, and each deletion on record?"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from prolepsis.audit.entry import START_OF_CHAIN
from prolepsis.audit.verify import Anchor, Evidence, Fault, by_seq, end_faults, signature_faults, unsigned_faults
from prolepsis.store import record_chain
from prolepsis.store.signing import PublicKeys


@dataclass(frozen=True, slots=True)
class RecordsVerified:
    head: Anchor
    num_records: int
    num_deleted: int
    anchored: int
    """Number of the last link that an anchor vouches for; 0: none."""
    faults: tuple[Fault, ...]


def verify_records(
    connection: Connection, anchors: Sequence[Anchor] = (), keys: PublicKeys | None = None
) -> RecordsVerified:
    """Check every link and every record; the numbers of faults are those of links."""
    faults: list[Fault] = []
    missing: set[int] = set()
    last, num_records, num_deleted, anchored = Anchor(0, START_OF_CHAIN), 0, 0, 0
    known, unsigned = by_seq(anchors), list[int]()
    for link, record in record_chain.links(connection):
        if link.seq != last.seq + 1 or link.digest != link.expected_digest(last.digest):
            faults.append(Fault(link.seq, "does not follow the link before it, or has been changed"))
        if known.get(link.seq, frozenset()) - {link.digest}:
            faults.append(Fault(link.seq, "is not the link of the anchor: the chain has been rewritten"))
        if record is not None and record_chain.content_digest(record) != link.content_digest:
            faults.append(Fault(link.seq, "has another record than was written"))
        if link.kind == "record" and record is None:
            missing.add(link.seq)
        if link.kind == "invalid":
            faults.append(Fault(link.seq, "says that the links before it were not signed by a known key"))
        if link.kind == "unsigned":
            unsigned.append(link.seq)
        num_records += record is not None
        num_deleted += len(missing & set(link.deletes))
        missing -= set(link.deletes)
        anchored = link.seq if link.seq in known else anchored
        last = Anchor(link.seq, link.digest)
    faults += [Fault(seq, "has no record, and no later link says that it was deleted") for seq in sorted(missing)]
    end = Anchor(*record_chain.head(connection))
    faults += unsigned_faults(unsigned, known)
    faults += end_faults(last, end, known)
    faults += signature_faults(last, Evidence(end, record_chain.signed_head(connection), keys))
    if strange := record_chain.num_unlinked(connection):
        faults.append(Fault(last.seq, f"is the last, and {strange} records have no link"))
    return RecordsVerified(last, num_records, num_deleted, anchored, tuple(faults))
