"""The store of one process: its database and what writes to it behind the scenes."""

from dataclasses import dataclass

import structlog

from prolepsis.audit import chain
from prolepsis.audit.entry import AuditEntry
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import InvalidParameter, StoreUnavailable
from prolepsis.store import records
from prolepsis.store.database import Database, store_url
from prolepsis.store.migrate import upgrade
from prolepsis.store.writer import Writer, WriterSettings
from prolepsis.telemetry.store import StoreMetrics

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    database: Database
    writer: Writer

    def record_act(self, act: AuditEvent) -> AuditEntry:
        """Write an act to the audit log now: it is on disk before this returns, so before what it allows takes effect.

        Waits for the database, so not for an event loop; raises `StoreUnavailable`, and the same act may then be sent
        again.
        """
        with self.database.write() as connection:
            [entry] = chain.append(connection, [act])
        return entry

    def close(self) -> None:
        """Write what is queued, within seconds."""
        self.writer.close()
        self.database.close()


@dataclass(frozen=True, slots=True)
class Forgotten:
    num_records: int
    entry: AuditEntry
    """Says what was erased, and names nobody."""


def open_store(setting: str, metrics: StoreMetrics, settings: WriterSettings | None = None) -> Store | None:
    """Open the store that a `store` setting names, None for none, and bring its schema up to date.

    A database that cannot be had now does not hold up serving: it is asked again until it is there. Raises
    `ConfigError` for a setting that names none, and for a schema of a newer version.
    """
    url = store_url(setting)
    if url is None:
        return None
    database = Database(url)
    try:
        upgrade(database)
    except StoreUnavailable as error:
        log.error("store_failed", error=str(error))
    return Store(database, Writer(database, metrics, settings))


def forget_tenant(database: Database, tenant: str, actor: str) -> Forgotten:
    """Delete a tenant's request records, then erase what audit entries tell about it.

    The chain verifies as before. What a running server still has in its queue is written after that, and what fails
    half way is done again from the start. Raises `StoreUnavailable`, and `InvalidParameter` for the tenant without a
    name.
    """
    if not tenant:
        raise InvalidParameter("tenant is empty; allowed: the name of a tenant", param="tenant")
    num_records = records.forget(database, tenant)
    act = AuditEvent(actor=actor, action="tenant.forgotten", after={"request_records": num_records})
    with database.write() as connection:
        return Forgotten(num_records, chain.erase(connection, tenant, act))
