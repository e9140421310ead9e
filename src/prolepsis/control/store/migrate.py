"""Upgrades a database to the schema of this version; replicas that start together take turns."""

from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, inspect, text

from prolepsis.control.store.database import Database, in_memory
from prolepsis.core.errors import ConfigError

if TYPE_CHECKING:  # imported for a database that needs it: it takes a third of a second
    from alembic.config import Config

NEWEST = "0001"
"""The revision that this version makes and needs: that of the last file in `migrations/versions`."""
_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x70726F6C  # the number of the migrations' advisory lock in PostgreSQL


def upgrade(database: Database) -> None:
    """Apply the missing migrations, all or none, under a lock.

    Raises `StoreUnavailable`, and `ConfigError` for the schema of another version.
    """
    if revision(database) == NEWEST:
        return
    from alembic import command

    database.make_file()
    with database.write() as connection:  # in SQLite this is the lock
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        _check_known(_revision(connection), database)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def migrated_in_memory() -> Database:
    """Return a database in memory with the schema and nothing in it."""
    return in_memory(_empty())


@cache
def _empty() -> bytes:
    with closing(in_memory()) as database:
        upgrade(database)
        return database.serialized()


def revision(database: Database) -> str | None:
    """Return the revision of the database's schema, None if it has none; raises `StoreUnavailable`."""
    if database.file is not None and not database.file.exists():
        return None
    with database.read() as connection:
        schema = _revision(connection)
    _check_known(schema, database)
    return schema


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    schema: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return schema


def _check_known(schema: str | None, database: Database) -> None:
    if schema in (None, NEWEST):
        return
    from alembic.script import ScriptDirectory

    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if schema not in known:
        given = f"store {database.name} has schema {schema} of another version"
        raise ConfigError(f"{given}; this one knows {', '.join(sorted(known))}: name another database", param="store")


def _config() -> "Config":
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
