"""Verification: is the chain as it was written?"""

from collections.abc import Iterable
from dataclasses import dataclass

from prolepsis.audit.entry import START_OF_CHAIN, AuditEntry
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
class Verified:
    head: Anchor
    """The last entry that was read; (0, `START_OF_CHAIN`) if there is none."""
    num_entries: int
    num_erased: int
    faults: tuple[Fault, ...]


def verify(entries: Iterable[AuditEntry], *, head: Anchor | None = None, anchor: Anchor | None = None) -> Verified:
    """Check all entries from the first on: every digest, every link, every erasure.

    `head`: the last entry according to the store. `anchor`: kept from an earlier run; without one, a writer of the
    whole store could replace the chain, or cut off its end.
    """
    faults: list[Fault] = []
    last, num_entries, num_erased = Anchor(0, START_OF_CHAIN), 0, 0
    unexplained: set[int] = set()
    for entry in entries:
        faults += [Fault(entry.seq, what) for what in _faults(entry, last)]
        unexplained -= set(entry.erases)
        if entry.details is None:
            unexplained.add(entry.seq)
            num_erased += 1
        last = Anchor(entry.seq, entry.digest)
        num_entries += 1
        if anchor is not None and entry.seq == anchor.seq and entry.digest != anchor.digest:
            faults.append(Fault(entry.seq, "is not the entry of the anchor: the chain has been rewritten"))
    faults += [Fault(seq, "has no details, and no later entry lists it as erased") for seq in sorted(unexplained)]
    faults += _end_faults(last, head, anchor)
    return Verified(last, num_entries, num_erased, tuple(faults))


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
    if entry.expected_digest() != entry.digest:
        faults.append("has been changed")
    return faults


def _end_faults(last: Anchor, head: Anchor | None, anchor: Anchor | None) -> list[Fault]:
    faults = []
    if head is not None and head != last:
        faults.append(Fault(last.seq, f"is the last, but the store's chain ends with {head.seq}"))
    if anchor is not None and anchor.seq > last.seq:
        faults.append(Fault(last.seq, f"is the last, but the anchor is entry {anchor.seq}: the end is cut off"))
    return faults
