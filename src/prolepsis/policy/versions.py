"""Versions of the plan, and which one is in use: of two who change it at once, one wins and the other is told."""

import time
from dataclasses import dataclass
from hashlib import sha256

from sqlalchemy import Connection, func, insert, select, update

from prolepsis.core.errors import InvalidParameter, StoreConflict
from prolepsis.store.tables import plan_current, plan_versions

NO_PLAN = 0
"""The version in use before the first."""


@dataclass(frozen=True, slots=True)
class PlanVersion:
    """One text of the plan; versions count up from 1 and are never changed or used twice."""

    version: int
    text: str
    digest: str
    """SHA-256 of the text."""
    author: str
    note: str
    created_at: float
    """Unix time in seconds."""


def put(connection: Connection, text: str, *, author: str, note: str = "", over: int) -> PlanVersion:
    """Store a text as the next version, in use in place of version `over` from now on (`NO_PLAN`: as the first).

    Raises `StoreConflict` where another version is in use by now: whoever decided had not seen it.
    """
    newest = connection.scalar(select(func.max(plan_versions.c.version))) or 0
    digest = sha256(text.encode()).hexdigest()
    stored = PlanVersion(newest + 1, text, digest, author, note, time.time())
    _use(connection, stored.version, over)
    row = {name: getattr(stored, name) for name in PlanVersion.__dataclass_fields__}
    connection.execute(insert(plan_versions), [row])
    return stored


def current(connection: Connection) -> PlanVersion | None:
    """Return the version in use, None before the first."""
    version = current_version(connection)
    return None if version == NO_PLAN else get(connection, version)


def current_version(connection: Connection) -> int:
    return connection.scalar(select(plan_current.c.version)) or NO_PLAN


def get(connection: Connection, version: int) -> PlanVersion:
    """Return a stored version; raises `InvalidParameter` where there is none."""
    row = connection.execute(select(plan_versions).where(plan_versions.c.version == version)).mappings().first()
    if row is None:
        newest = connection.scalar(select(func.max(plan_versions.c.version))) or 0
        raise InvalidParameter(f"plan version is {version}; stored: 1 to {newest}", param="version")
    return PlanVersion(**row)


def history(connection: Connection, limit: int) -> list[PlanVersion]:
    """Return stored versions, the newest first."""
    query = select(plan_versions).order_by(plan_versions.c.version.desc()).limit(limit)
    return [PlanVersion(**row) for row in connection.execute(query).mappings()]


def _use(connection: Connection, version: int, over: int) -> None:
    change = update(plan_current).where(plan_current.c.version == over).values(version=version)
    if connection.execute(change).rowcount:
        return
    now = current(connection)
    winner = f"version {now.version} by {now.author}" if now else "none"
    raise StoreConflict(f"the plan in use is {winner}, not version {over}: look at it and decide again")
