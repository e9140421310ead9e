"""Upgrades a database to the schema of this version; replicas that start together take turns."""

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from prolepsis.core.errors import ConfigError
from prolepsis.store.database import Database

_FOLDER = Path(__file__).parent / "migrations"
_LOCK = 0x70726F6C
"""The number of the migrations' advisory lock in PostgreSQL."""


def upgrade(database: Database) -> None:
    """Apply the missing migrations, all or none, under a lock.

    Raises `StoreUnavailable`, and `ConfigError` for the schema of another version.
    """
    if revision(database) == newest_revision():
        return
    database.make_file()
    with database.write() as connection:  # in SQLite this is the lock
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        _check_known(_revision(connection), database)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def revision(database: Database) -> str | None:
    """Return the revision of the database's schema, None if it has none; raises `StoreUnavailable`."""
    if database.file is not None and not database.file.exists():
        return None
    with database.read() as connection:
        found = _revision(connection)
    _check_known(found, database)
    return found


def newest_revision() -> str:
    """Return the revision that this version makes and needs."""
    head = _scripts().get_current_head()
    assert head is not None, "there is a migration"
    return head


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _check_known(found: str | None, database: Database) -> None:
    known = {script.revision for script in _scripts().walk_revisions()}
    if found is not None and found not in known:
        given = f"store {database.name} has schema {found} of another version"
        raise ConfigError(f"{given}; this one knows {_named(known)}: name another database", param="store")


def _named(revisions: set[str]) -> str:
    return ", ".join(sorted(revisions))


def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    return config
