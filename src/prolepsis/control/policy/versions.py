"""Versions of the policy in the store; the newest is in use. Of two changes at once one wins, the other conflicts."""

import time
from dataclasses import dataclass, fields
from hashlib import sha256

from sqlalchemy import Connection

from prolepsis.control.store import documents as of
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.core.errors import InvalidParameter, StoreConflict

NO_VERSION = 0  # the version in use before the first


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyVersion:
    """One version of the policy; versions count up from 1 and are never changed or used twice."""

    version: int
    digest: str  # SHA-256 of the text
    author: str
    reason: str
    created_at: float  # Unix time in seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText(PolicyVersion):
    text: str


_POLICIES = Documents.of("policy", PolicyText)


def put(connection: Connection, text: str, *, author: str, reason: str = "", expect: int) -> PolicyText:
    """Store a text as the next version and use it in place of version `expect` (`NO_VERSION`: as the first).

    Raises `StoreConflict` if another version is in use by now: the author decided without having seen it.
    """
    now, digest = time.time(), sha256(text.encode()).hexdigest()
    version = expect + 1
    stored = PolicyText(version=version, digest=digest, author=author, reason=reason, created_at=now, text=text)
    document = StoredDocument(str(version), stored, now, version, author)
    if current_version(connection) != expect or not _POLICIES.add(connection, [document]):
        used = current(connection)
        winner = f"version {used.version} by {used.author}" if used else "none"
        raise StoreConflict(f"the policy in use is {winner}, not version {expect}: review it and decide again")
    return stored


def current(connection: Connection) -> PolicyText | None:
    """Return the version in use, None before the first."""
    return next(iter(_newest(connection, 1)), None)


def current_version(connection: Connection) -> int:
    return _POLICIES.newest_version(connection)


def get(connection: Connection, version: int) -> PolicyText:
    """Return a stored version; raises `InvalidParameter` if there is none of this number."""
    document = _POLICIES.get(connection, str(version))
    if document is None:
        message = f"policy version is {version}; stored: 1 to {current_version(connection)}"
        raise InvalidParameter(message, param="version")
    return document.value


def history(connection: Connection, limit: int) -> list[PolicyVersion]:
    """Return stored versions without their texts, the newest first."""
    names = [field.name for field in fields(PolicyVersion)]
    return [PolicyVersion(**{name: getattr(version, name) for name in names}) for version in _newest(connection, limit)]


def _newest(connection: Connection, limit: int) -> list[PolicyText]:
    documents = _POLICIES.list(connection, order=of.version.desc(), limit=limit)
    return [document.value for document in documents]
