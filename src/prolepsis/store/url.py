"""Which database a setting names."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from prolepsis.core.directories import data_directory
from prolepsis.core.errors import ConfigError

AUTO = "auto"
NONE = "none"
ALLOWED = "allowed: auto (SQLite in the user's data directory), none, sqlite:///FILE, postgresql://USER@HOST/DATABASE"
FILE_NAME = "store.sqlite"


def store_url(setting: str) -> URL | None:
    """Return the database of a `store` setting, None for none; raises `ConfigError` naming what is allowed."""
    if setting == NONE:
        return None
    if setting == AUTO:
        return sqlite_url(data_directory() / FILE_NAME)
    try:
        url = make_url(setting)
    except ArgumentError:
        raise ConfigError(f"store is no database URL; {ALLOWED}", param="store") from None
    if url.drivername == "sqlite" and url.database and url.database != ":memory:" and not url.query:
        return url
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    raise ConfigError(f"store is {url.render_as_string(hide_password=True)!r}; {ALLOWED}", param="store")


def sqlite_url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))
