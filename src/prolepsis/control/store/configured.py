"""The store that a command reads: the configured one, or the one of `--store`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import typer

from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.migrate import NEWEST, revision
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.flags import settings_here

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="sqlite:///FILE or postgresql://...; default: the configured store"),
]


@contextmanager
def configured_database(given: str | None, options: Mapping[str, object] | None = None) -> Iterator[Database]:
    """Open the database with any schema; raises `ConfigError` if none is configured."""
    url = store_url(settings_here(store=given).server.store)
    if url is None:
        raise ConfigError("no store is configured (store is none); name one with --store", param="store")
    database = Database(url, options=options)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def ready_database(given: str | None, options: Mapping[str, object] | None = None) -> Iterator[Database]:
    """Open the database; raises `ConfigError` unless it has the schema of this version."""
    with configured_database(given, options) as database:
        schema = revision(database)
        if schema is None:
            raise ConfigError(f"there is no store at {database.name}; `prolepsis serve` creates it", param="store")
        if schema != NEWEST:
            message = f"store {database.name} has the older schema {schema}; `prolepsis store upgrade` upgrades it"
            raise ConfigError(message, param="store")
        yield database
