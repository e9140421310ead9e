"""The store that commands work on: the configured one, or the one they are given."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from prolepsis.cli.flags import settings_here
from prolepsis.core.errors import ConfigError
from prolepsis.store.database import Database
from prolepsis.store.migrate import newest_revision, revision
from prolepsis.store.url import store_url

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="sqlite:///FILE or postgresql://...; default: as `serve` would use"),
]


@contextmanager
def configured_database(given: str | None) -> Iterator[Database]:
    """Hold the database that is meant, whatever its schema; raises `ConfigError` where that is none."""
    url = store_url(settings_here(store=given).server.store)
    if url is None:
        raise ConfigError("store is none; name one with --store", param="store")
    database = Database(url)
    try:
        yield database
    finally:
        database.close()


@contextmanager
def ready_database(given: str | None) -> Iterator[Database]:
    """Hold the database that is meant; raises `ConfigError` where it lacks the schema of this version."""
    with configured_database(given) as database:
        found = revision(database)
        if found is None:
            raise ConfigError(f"there is no store at {database.name}; `prolepsis serve` makes it", param="store")
        if found != newest_revision():
            message = f"store {database.name} has the older schema {found}; `prolepsis store upgrade` renews it"
            raise ConfigError(message, param="store")
        yield database
