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
from prolepsis.control.store.links import ChainLink
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.json_value import canonical, digest_of
from prolepsis.core.stored_text import storable

SERVED = "request.served"  # action of the entries of served requests
RECORDING = "recording"  # field of such an entry with everything that is needed to decode the request again


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
class AuditEntry(ChainLink):
    uid: str
    at: str  # UTC, ISO 8601 with microseconds
    versions: Mapping[str, str]
    details: Details | None  # None: erased

    def digest_at(self, seq: int, previous: str) -> str:
        names = ("uid", "at", "action", "versions", "erases", "details_digest")
        return digest_of({"seq": seq, "previous": previous, **{name: getattr(self, name) for name in names}})

    def found_digest(self) -> str | None:
        return None if self.details is None else self.details.digest()

    def columns(self) -> dict[str, object]:
        details = self.details
        assert details is not None, "an entry is erased after it was stored"
        return {
            **ChainLink.columns(self),
            **{"uid": self.uid, "at": self.at, "versions": canonical(self.versions), "previous": self.previous},
            **asdict(details),
            **{"before": canonical(details.before), "after": canonical(details.after)},
        }


@dataclass(frozen=True, slots=True)
class RedactedEvent:
    """An event with the details that its entry will hold."""

    uid: str
    action: str
    versions: Mapping[str, str]
    details: Details
    names: frozenset[str] = frozenset()  # digests of the names by which its entry is found


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
