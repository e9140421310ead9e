"""Rollout stores for tests."""

from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.database import Database, in_memory
from prolepsis.control.store.tables import metadata


def memory_database() -> Database:
    """Return a database in memory with the tables, without the time that migrations take."""
    database = in_memory()
    with database.write() as connection:
        metadata.create_all(connection)
    return database


def memory_store() -> RolloutStore:
    """Return a store that ends with the test."""
    return RolloutStore(memory_database())
