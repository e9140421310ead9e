"""Texts of requests in the audit log age: after some days the details of their entries are erased.

The chain still verifies: an entry lists what was erased. Entries without texts stay.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection, or_, select

from prolepsis.control.audit import chain
from prolepsis.control.audit.entry import SERVED
from prolepsis.control.store.database import Database
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import DAY_S, ServerConfig, days_by_tenant

BATCH = 10_000  # most entries that one entry lists as erased
_HOLDS_TEXT = '%"prompt":%'  # in canonical JSON: a quotation mark inside a text is escaped, so this is a key


@dataclass(frozen=True, slots=True)
class TextRetention:
    """Days until texts are erased; 0: never."""

    days: float
    by_tenant: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ServerConfig) -> "TextRetention":
        return cls(config.audit_text_days, days_by_tenant(config.audit_text_days_by_tenant))


@dataclass(frozen=True, slots=True)
class OldText:
    """An entry whose text is older than its tenant's days."""

    seq: int
    tenant: str
    at: str  # UTC, ISO 8601


def old_texts(
    connection: Connection, retention: TextRetention, now: float, limit: int | None = None
) -> Sequence[OldText]:
    """Return the entries whose texts are to be erased at `now` (Unix seconds), the oldest first."""
    of = chain.of
    by_tenant = retention.by_tenant
    is_old = [(of.tenant == name) & (of.at < _before(now, days)) for name, days in by_tenant.items() if days]
    if retention.days:
        is_old.append(of.tenant.not_in(list(by_tenant)) & (of.at < _before(now, retention.days)))
    if not is_old:
        return []
    query = select(of.seq, of.tenant, of.at).order_by(of.seq).limit(limit)
    query = query.where(chain.OF_ACTS, of.action == SERVED, or_(*is_old), of.after.like(_HOLDS_TEXT))
    return [OldText(*row) for row in connection.execute(query)]


def erase_old_texts(database: Database, retention: TextRetention, now: float, *, actor: str = SERVER) -> int:
    """Erase the details of entries with old texts; returns their number. Raises `StoreUnavailable`."""
    total = 0
    while True:
        with database.write() as connection:
            chain.head(connection, hold=True)
            old = old_texts(connection, retention, now, BATCH)
            if old:
                event = AuditEvent(actor=actor, action="texts.erased", after={"entries": len(old)})
                chain.erase(connection, [entry.seq for entry in old], event)
        total += len(old)
        if len(old) < BATCH:
            return total


def text_upkeep(config: ServerConfig) -> Callable[[Database], int]:
    """Return what the store's thread does with texts now and then."""
    retention = TextRetention.of(config)
    return lambda database: erase_old_texts(database, retention, time.time())


def _before(now: float, days: float) -> str:
    return datetime.fromtimestamp(now - days * DAY_S, UTC).isoformat(timespec="microseconds")
