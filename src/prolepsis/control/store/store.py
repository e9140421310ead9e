"""The store of one process: its database and the writer. There always is one: `none` keeps it in memory."""

from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.migrate import migrated_in_memory, upgrade
from prolepsis.control.store.writer import ItemWriter, Writer, WriterSettings
from prolepsis.core.errors import StoreUnavailable

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Store:
    database: Database
    writer: ItemWriter

    def close(self) -> None:
        """Write what is queued, within seconds."""
        self.writer.close()
        self.database.close()


def open_store(
    setting: str,
    registry: CollectorRegistry,
    settings: WriterSettings | None = None,
    *,
    options: Mapping[str, object] | None = None,
) -> Store:
    """Open the store that a `store` setting names, and bring its schema up to date; none: `unrecorded`.

    `options`: as `Database` takes them.

    An unavailable database does not delay serving: the writer retries until it is there. Raises `ConfigError` for an
    invalid setting, and for the schema of another version.
    """
    url = store_url(setting)
    if url is None:
        return unrecorded()
    database = Database(url, options=options)
    try:
        upgrade(database)
    except StoreUnavailable as error:
        log.error("store_failed", error=str(error))
    return Store(database, Writer(database, registry, settings))


def unrecorded() -> Store:
    """Return a store in memory whose writer records nothing."""
    return Store(migrated_in_memory(), ItemWriter())
