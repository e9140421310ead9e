"""Audit entries and their digests.

The chain covers fields without personal data: number, time, action, versions and the salted digest of the details. So
the details of an entry can be erased, and the chain still verifies. The salt is erased with them, so that guesses
cannot be checked.
"""

import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256

from prolepsis.control.redaction.values import redacted, redacted_text
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.json_value import digest_of
from prolepsis.core.stored_text import storable

SERVED = "request.served"
"""Action of the entries of served requests."""
RECORDING = "recording"
"""Field of such an entry with everything that is needed to decode the request again."""
HEAD_UNSIGNED = "audit.head_unsigned"
"""Action of an entry that was signed after others had been written without a signature."""
HEAD_INVALID = "audit.head_invalid"
"""Action of an entry whose writer found a head that no known key had signed."""
START_OF_CHAIN = "0" * 64
"""The previous digest of the first entry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """The part of an entry that can be erased."""

    actor: str
    tenant: str
    subject: str
    before: object
    after: object
    salt: str

    def digest(self) -> str:
        return digest_of(asdict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    seq: int
    """From 1, without gaps."""
    uid: str
    at: str
    """UTC, ISO 8601 with microseconds."""
    action: str
    versions: Mapping[str, str]
    erases: tuple[int, ...]
    """Numbers of the entries whose details were erased with this one."""
    details: Details | None
    """None: erased."""
    details_digest: str
    previous: str
    """Digest of the entry before."""
    digest: str

    def expected_digest(self) -> str:
        """Return the digest that the entry has if nothing but its details was changed."""
        chained = ("seq", "uid", "at", "action", "versions", "erases", "details_digest", "previous")
        return digest_of({name: getattr(self, name) for name in chained})

    def plain(self) -> dict[str, object]:
        """Return the entry as plain JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class RedactedEvent:
    """An event with the details that its entry will hold."""

    uid: str
    action: str
    versions: Mapping[str, str]
    details: Details
    names: frozenset[str] = frozenset()
    """Digests of the names by which its entry is found."""


def redact(event: AuditEvent) -> RedactedEvent:
    """Return the event redacted; takes milliseconds if it has much text."""
    details = Details(
        actor=storable(event.actor),
        tenant=storable(event.tenant),
        subject=redacted_text(event.subject),
        before=redacted(event.before),
        after=redacted(event.after),
        salt=secrets.token_hex(32),
    )
    versions = {storable(name): storable(version) for name, version in event.versions.items()}
    names = frozenset(name_digest(storable(name)) for name in event.names if name)
    return RedactedEvent(event.uid, storable(event.action), versions, details, names)


def name_digest(name: str) -> str:
    """Return what an entry is found by: names that clients choose are stored in no other form."""
    return sha256(name.encode()).hexdigest()
