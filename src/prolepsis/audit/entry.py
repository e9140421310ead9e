"""Audit entries and their digests.

The chain runs over what says nothing about anybody: number, time, action, versions and the salted digest of the told
part. So the told part of an entry can be erased, and the chain still verifies; the salt goes with it, so that nobody
can find out by guessing what it was.
"""

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256

SERVED = "request.served"
"""Action of the entries that keep a request."""
START_OF_CHAIN = "0" * 64
"""What the first entry has as the digest of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is erased on demand."""

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
    """Numbers of the entries whose told part was erased with this one."""
    told: Told | None
    """None: erased."""
    told_digest: str
    previous: str
    """Digest of the entry before."""
    digest: str

    def expected_digest(self) -> str:
        """Return the digest that the entry has if nothing of it but the told part was changed."""
        chained = ("seq", "uid", "at", "action", "versions", "erases", "told_digest", "previous")
        return digest_of({name: getattr(self, name) for name in chained})

    def plain(self) -> dict[str, object]:
        """Return the entry as plain JSON values."""
        return asdict(self)


def canonical(value: object) -> str:
    """Return JSON in its one form: keys sorted, no spaces, ASCII; raises ValueError for what JSON cannot say."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest_of(value: object) -> str:
    """Return the SHA-256 of the canonical JSON, hexadecimal."""
    return sha256(canonical(value).encode()).hexdigest()


def new_salt() -> str:
    return secrets.token_hex(32)
