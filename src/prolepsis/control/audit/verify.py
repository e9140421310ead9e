"""Verification: is the chain as it was written?"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from prolepsis.control.store import record_chain
from prolepsis.control.store.links import HEAD_INVALID, HEAD_UNSIGNED, START_OF_CHAIN, ChainLink, head, signed_head
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

    head: Anchor | None = None  # the last entry according to the store
    signed: SignedHead | None = None  # the store's head with its signature
    keys: PublicKeys | None = None  # those whose signatures count; None: signatures cannot be checked
    anchors: Sequence[Anchor] = ()  # kept outside the store by earlier runs, or by the server


@dataclass(frozen=True, slots=True)
class Verified:
    head: Anchor  # the last entry that was read; (0, `START_OF_CHAIN`) if there is none
    num_entries: int
    num_erased: int
    anchored: int  # number of the last entry that an anchor vouches for; 0: none
    faults: tuple[Fault, ...]
    unproven: tuple[str, ...]  # claims for which the evidence does not suffice


NO_EVIDENCE = ChainEvidence()


def verify(links: Iterable[ChainLink], evidence: ChainEvidence = NO_EVIDENCE) -> Verified:
    """Check all links of a chain from the first on: every digest, every link, every erasure, and the evidence."""
    faults: list[Fault] = []
    last, num_entries, num_erased, anchored = Anchor(0, START_OF_CHAIN), 0, 0, 0
    unexplained: set[int] = set()
    anchors: dict[int, set[str]] = {}
    for anchor in evidence.anchors:
        anchors.setdefault(anchor.seq, set()).add(anchor.digest)
    unsigned: list[int] = []
    for link in links:
        digest = link.found_digest()
        faults += [Fault(link.seq, what) for what in _faults(link, digest, last)]
        if anchors.get(link.seq, set()) - {link.digest}:
            faults.append(Fault(link.seq, "is not the entry of the anchor: the chain has been rewritten"))
        unexplained -= set(link.erases)
        if digest is None:
            unexplained.add(link.seq)
            num_erased += 1
        if link.action == HEAD_UNSIGNED:
            unsigned.append(link.seq)
        anchored = link.seq if link.seq in anchors else anchored
        last = Anchor(link.seq, link.digest)
        num_entries += 1
    faults += [Fault(seq, "has no details, and no later entry lists it as erased") for seq in sorted(unexplained)]
    faults += _unsigned_faults(unsigned, anchors)
    faults += [Fault(last.seq, what) for what in _end_faults(last, evidence, max(anchors, default=0))]
    return Verified(last, num_entries, num_erased, anchored, tuple(faults), tuple(_unproven(evidence, unsigned)))


def verify_records(connection: Connection, anchors: Sequence[Anchor] = (), keys: PublicKeys | None = None) -> Verified:
    """Check the chain of request records, and that every record since its first one has a link."""
    end = Anchor(*head(connection, "requests"))
    evidence = ChainEvidence(end, signed_head(connection, "requests"), keys, anchors)
    verified = verify(record_chain.links(connection), evidence)
    if strange := record_chain.num_unlinked(connection):
        fault = Fault(verified.head.seq, f"is the last, and {strange} records have no link")
        return replace(verified, faults=(*verified.faults, fault))
    return verified


def parse_anchor(text: str) -> Anchor:
    """Read NUMBER:DIGEST; raises `InvalidParameter`."""
    seq, _, digest = text.partition(":")
    if not (seq.isascii() and seq.isdigit() and len(digest) == len(START_OF_CHAIN)):
        message = f"anchor is {text[:80]!r}; allowed: NUMBER:DIGEST, as `prolepsis audit verify` prints it"
        raise InvalidParameter(message, param="anchor")
    return Anchor(int(seq), digest)


def _faults(link: ChainLink, found: str | None, last: Anchor) -> Iterator[str]:
    """Yield what is wrong with a link; `found`: the digest of its details now."""
    if link.seq != last.seq + 1:
        yield f"follows {last.seq}: entries between them are missing, or it has another's number"
    if link.previous != last.digest:
        yield "does not follow the entry before it"
    if found not in (None, link.details_digest):
        yield "has other details than were written"
    if link.action == HEAD_INVALID:
        yield "says that the entries before it were not signed by a known key"
    if link.expected_digest() != link.digest:
        yield "has been changed"


def _end_faults(last: Anchor, evidence: ChainEvidence, newest: int) -> Iterator[str]:
    """Yield what is wrong with the end of a chain; `newest`: the number of its last anchor."""
    head, signed, keys = evidence.head, evidence.signed, evidence.keys
    if head is not None and head != last:
        yield f"is the last, but the store's chain ends with {head.seq}"
    if newest > last.seq:
        yield f"is the last, but the anchor is entry {newest}: the end is cut off"
    if head is not None and head.seq and keys is not None:
        fault = "is not signed" if signed is None else keys.fault(signed)
        if fault is not None:
            yield f"is the end of a chain that {fault}"


def _unsigned_faults(unsigned: Sequence[int], anchors: Iterable[int]) -> list[Fault]:
    """A chain may begin without signatures, written by an earlier version; it does not go back to that."""
    first = min(anchors, default=None)
    return [
        Fault(seq, "says that entries before it were not signed, as those before them had been")
        for i, seq in enumerate(unsigned)
        if i > 0 or (first is not None and first < seq)
    ]


def _unproven(evidence: ChainEvidence, unsigned: Sequence[int]) -> Iterator[str]:
    if not evidence.anchors:
        yield "without an anchor, that the whole chain was not replaced or its end cut off"
    if evidence.keys is None:
        yield "without a public key, that the chain's end was signed by its writer"
    elif evidence.head is None:
        yield "in an export, that its end is the signed one"
    if unsigned and not any(anchor.seq < unsigned[0] for anchor in evidence.anchors):
        yield f"for entries before {unsigned[0]}, which were written without a signature, that they were not replaced"
