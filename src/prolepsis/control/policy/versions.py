"""The table of policy versions, and which one is in use: of two changes at once one wins, the other is a conflict."""

import time
from dataclasses import asdict, dataclass
from hashlib import sha256

from sqlalchemy import Connection, func, insert, select, update

from prolepsis.control.store.tables import policy_current, policy_versions
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
    """One version with its text."""

    text: str


def put(connection: Connection, text: str, *, author: str, reason: str = "", expect: int) -> PolicyText:
    """Store a text as the next version and use it in place of version `expect` (`NO_VERSION`: as the first).

    Raises `StoreConflict` if another version is in use by now: the author decided without having seen it.
    """
    stored = PolicyText(
        version=_newest(connection) + 1,
        digest=sha256(text.encode()).hexdigest(),
        author=author,
        reason=reason,
        created_at=time.time(),
        text=text,
    )
    change = update(policy_current).where(policy_current.c.version == expect).values(version=stored.version)
    if not connection.execute(change).rowcount:
        now = current(connection)
        winner = f"version {now.version} by {now.author}" if now else "none"
        raise StoreConflict(f"the policy in use is {winner}, not version {expect}: review it and decide again")
    connection.execute(insert(policy_versions), [asdict(stored)])
    return stored


def current(connection: Connection) -> PolicyText | None:
    """Return the version in use, None before the first."""
    version = current_version(connection)
    return None if version == NO_VERSION else get(connection, version)


def current_version(connection: Connection) -> int:
    return connection.scalar(select(policy_current.c.version)) or NO_VERSION


def get(connection: Connection, version: int) -> PolicyText:
    """Return a stored version; raises `InvalidParameter` if there is none of this number."""
    row = connection.execute(select(policy_versions).where(policy_versions.c.version == version)).mappings().first()
    if row is None:
        message = f"policy version is {version}; stored: 1 to {_newest(connection)}"
        raise InvalidParameter(message, param="version")
    return PolicyText(**row)


def history(connection: Connection, limit: int) -> list[PolicyVersion]:
    """Return stored versions without their texts, the newest first."""
    of = policy_versions.c
    columns = (of.version, of.digest, of.author, of.reason, of.created_at)
    query = select(*columns).order_by(of.version.desc()).limit(limit)
    return [PolicyVersion(**row) for row in connection.execute(query).mappings()]


def _newest(connection: Connection) -> int:
    return connection.scalar(select(func.max(policy_versions.c.version))) or NO_VERSION
