"""Rollout stores for tests."""

from prolepsis.control.rollout.store import RolloutStore
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import migrated_in_memory


def memory_database() -> Database:
    return migrated_in_memory()


def memory_store() -> RolloutStore:
    """Return a store that ends with the test."""
    return RolloutStore(memory_database())
