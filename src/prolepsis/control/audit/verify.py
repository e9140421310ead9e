"""Verification: is the chain as it was written?"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from prolepsis.control.audit.entry import HEAD_INVALID, HEAD_UNSIGNED, START_OF_CHAIN, AuditEntry
from prolepsis.control.store import record_chain
from prolepsis.control.store.signing import PublicKeys, SignedHead
from prolepsis.core.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Anchor:
    """Number and digest of an entry, kept outside the store: earlier entries cannot be rewritten unnoticed."""

    seq: int
    digest: str

    def __str__(self) -> str:
        return f"{self.seq}:{self.digest}"


@dataclass(frozen=True, slots=True)
class Fault:
    seq: int
    what: str


@dataclass(frozen=True, slots=True)
class ChainEvidence:
    """Evidence about the chain apart from its entries."""

    head: Anchor | None = None
    """The last entry according to the store."""
    signed: SignedHead | None = None
    """The store's head with its signature."""
    keys: PublicKeys | None = None
    """Those whose signatures count; None: signatures cannot be checked."""
    anchors: Sequence[Anchor] = ()
    """Kept outside the store by earlier runs, or by the server."""


@dataclass(frozen=True, slots=True)
class Verified:
    head: Anchor
    """The last entry that was read; (0, `START_OF_CHAIN`) if there is none."""
    num_entries: int
    num_erased: int
    anchored: int
    """Number of the last entry that an anchor vouches for; 0: none."""
    faults: tuple[Fault, ...]
    unproven: tuple[str, ...]
    """Claims for which the evidence does not suffice."""


NO_EVIDENCE = ChainEvidence()


def verify(entries: Iterable[AuditEntry], evidence: ChainEvidence = NO_EVIDENCE) -> Verified:
    """Check all entries from the first on: every digest, every link, every erasure, and the evidence."""
    faults: list[Fault] = []
    last, num_entries, num_erased, anchored = Anchor(0, START_OF_CHAIN), 0, 0, 0
    unexplained: set[int] = set()
    anchors = by_seq(evidence.anchors)
    unsigned: list[int] = []
    for entry in entries:
        faults += [Fault(entry.seq, what) for what in (*_faults(entry, last), *_anchor_faults(entry, anchors))]
        unexplained -= set(entry.erases)
        if entry.details is None:
            unexplained.add(entry.seq)
            num_erased += 1
        if entry.action == HEAD_UNSIGNED:
            unsigned.append(entry.seq)
        anchored = entry.seq if entry.seq in anchors else anchored
        last = Anchor(entry.seq, entry.digest)
        num_entries += 1
    faults += [Fault(seq, "has no details, and no later entry lists it as erased") for seq in sorted(unexplained)]
    faults += unsigned_faults(unsigned, anchors)
    faults += end_faults(last, evidence.head, anchors)
    faults += signature_faults(last, evidence)
    return Verified(last, num_entries, num_erased, anchored, tuple(faults), tuple(_unproven(evidence, unsigned)))


def parse_anchor(text: str) -> Anchor:
    """Read NUMBER:DIGEST; raises `InvalidParameter`."""
    seq, _, digest = text.partition(":")
    if not (seq.isascii() and seq.isdigit() and len(digest) == len(START_OF_CHAIN)):
        message = f"anchor is {text[:80]!r}; allowed: NUMBER:DIGEST, as `prolepsis audit verify` prints it"
        raise InvalidParameter(message, param="anchor")
    return Anchor(int(seq), digest)


def _faults(entry: AuditEntry, last: Anchor) -> list[str]:
    faults = []
    if entry.seq != last.seq + 1:
        faults.append(f"follows {last.seq}: entries between them are missing, or it has another's number")
    if entry.previous != last.digest:
        faults.append("does not follow the entry before it")
    if entry.details is not None and entry.details.digest() != entry.details_digest:
        faults.append("has other details than were written")
    if entry.action == HEAD_INVALID:
        faults.append("says that the entries before it were not signed by a known key")
    if entry.expected_digest() != entry.digest:
        faults.append("has been changed")
    return faults


def by_seq(anchors: Iterable[Anchor]) -> Mapping[int, frozenset[str]]:
    found: dict[int, frozenset[str]] = {}
    for anchor in anchors:
        found[anchor.seq] = found.get(anchor.seq, frozenset()) | {anchor.digest}
    return found


def _anchor_faults(entry: AuditEntry, anchors: Mapping[int, frozenset[str]]) -> list[str]:
    wrong = anchors.get(entry.seq, frozenset()) - {entry.digest}
    return ["is not the entry of the anchor: the chain has been rewritten"] if wrong else []


def end_faults(last: Anchor, head: Anchor | None, anchors: Mapping[int, frozenset[str]]) -> list[Fault]:
    faults = []
    if head is not None and head != last:
        faults.append(Fault(last.seq, f"is the last, but the store's chain ends with {head.seq}"))
    newest = max(anchors, default=0)
    if newest > last.seq:
        faults.append(Fault(last.seq, f"is the last, but the anchor is entry {newest}: the end is cut off"))
    return faults


def unsigned_faults(unsigned: Sequence[int], anchors: Mapping[int, frozenset[str]]) -> list[Fault]:
    """A chain may begin without signatures, written by an earlier version; it does not go back to that."""
    first = min(anchors, default=None)
    return [
        Fault(seq, "says that entries before it were not signed, as those before them had been")
        for i, seq in enumerate(unsigned)
        if i > 0 or (first is not None and first < seq)
    ]


def signature_faults(last: Anchor, evidence: ChainEvidence) -> list[Fault]:
    if evidence.head is None or evidence.keys is None or not evidence.head.seq:
        return []
    if evidence.signed is None:
        return [Fault(last.seq, "is the end of a chain that is not signed")]
    fault = evidence.keys.fault(evidence.signed)
    return [] if fault is None else [Fault(last.seq, f"is the end of a chain that {fault}")]


def _unproven(evidence: ChainEvidence, unsigned: Sequence[int]) -> Iterator[str]:
    if not evidence.anchors:
        yield "without an anchor, that the whole chain was not replaced or its end cut off"
    if evidence.keys is None:
        yield "without a public key, that the chain's end was signed by its writer"
    elif evidence.head is None:
        yield "in an export, that its end is the signed one"
    if unsigned and not any(anchor.seq < unsigned[0] for anchor in evidence.anchors):
        yield f"for entries before {unsigned[0]}, which were written without a signature, that they were not replaced"


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
    """Check every link and every record; faults are numbered by link."""
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
    faults += signature_faults(last, ChainEvidence(end, record_chain.signed_head(connection), keys))
    if strange := record_chain.num_unlinked(connection):
        faults.append(Fault(last.seq, f"is the last, and {strange} records have no link"))
    return RecordsVerified(last, num_records, num_deleted, anchored, tuple(faults))
