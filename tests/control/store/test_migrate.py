"""The schema, from nothing and by several at once."""

import stat
import subprocess
import sys
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

from prolepsis.control.store import migrations
from prolepsis.control.store.migrate import NEWEST, migrated_in_memory, revision, upgrade
from prolepsis.control.store.tables import metadata, request_records
from prolepsis.core.errors import ConfigError
from tests.control.store.databases import opened
from tests.control.store.fakes import record

OPEN = """
import sys
from prolepsis.control.store.database import Database, store_url
from prolepsis.control.store.migrate import upgrade
upgrade(Database(store_url(sys.argv[1])))
print("alembic is imported" if "alembic" in sys.modules else "alembic is not imported")
"""
UPGRADE = """
import sys
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.database import store_url
print("ready", flush=True)
sys.stdin.readline()
upgrade(Database(store_url(sys.argv[1])))
"""


def test_migrations_lead_from_nothing_to_the_tables(empty: str) -> None:
    database = opened(empty)
    assert revision(database) is None
    upgrade(database)
    upgrade(database)
    assert revision(database) == NEWEST
    with database.read() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
    if database.file is not None:
        assert stat.S_IMODE(database.file.stat().st_mode) == 0o600
    database.close()


def test_the_newest_revision_is_that_of_the_last_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(Path(migrations.__path__[0])))
    assert ScriptDirectory.from_config(config).get_current_head() == NEWEST


def test_a_changed_schema_has_a_revision_of_its_own() -> None:
    """Else a store of the schema before would be opened and fail at each use. Change both together."""
    with closing(migrated_in_memory()) as database, database.read() as connection:
        made = connection.execute(text("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")).scalars()
        digest = sha256("\n".join(made).encode()).hexdigest()[:16]
    assert (NEWEST, digest) == ("0001", "a90f998dc7a06b0f")


def test_a_database_of_this_version_is_opened_without_alembic(setting: str) -> None:
    result = subprocess.run([sys.executable, "-c", OPEN, setting], capture_output=True, text=True, check=True)
    assert result.stdout == "alembic is not imported\n"


@pytest.mark.parametrize(
    "which",
    [
        "chain_links WHERE chain = 'audit' AND uid IN ('a', 'b')",
        "chain_links WHERE chain = 'requests' AND record_id IN ('a', 'b')",
        "chain_links WHERE chain = 'audit' AND tenant = 'a' ORDER BY seq DESC LIMIT 9",
        "documents WHERE kind = 'unit' AND key BETWEEN 'a' AND 'b'",
    ],
)
def test_what_is_asked_often_is_found_by_an_index(which: str) -> None:
    """The primary key of a link begins with its chain, and would be a scan of it."""
    with closing(migrated_in_memory()) as database, database.read() as connection:
        [plan] = connection.execute(text(f"EXPLAIN QUERY PLAN SELECT * FROM {which}")).scalars("detail")
    assert plan.count("?") >= 2, plan


def test_a_record_has_the_columns_of_its_table() -> None:
    assert record().row.keys() == set(request_records.columns.keys())


def test_replicas_that_start_at_once_take_turns(empty: str) -> None:
    command = [sys.executable, "-c", UPGRADE, empty]
    replicas = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for replica in replicas:
        assert replica.stdout is not None
        assert replica.stdout.readline() == "ready\n"
    for replica in replicas:
        assert replica.stdin is not None
        replica.stdin.write("go\n")
        replica.stdin.flush()
    for replica in replicas:
        _, said = replica.communicate(timeout=30)
        assert replica.returncode == 0, said


def test_a_schema_of_a_newer_version_is_refused_by_name(empty: str) -> None:
    database = opened(empty)
    upgrade(database)
    with database.write() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(ConfigError, match="9999"):
        upgrade(database)
    database.close()
