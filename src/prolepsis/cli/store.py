"""The store that commands work on: the configured one, or the one they are given."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from getpass import getuser
from typing import Annotated

import typer

from prolepsis.audit import chain
from prolepsis.audit.log import forget_tenant
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import EPILOG, AsJson, command_group, print_facts, print_json
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.policy import versions
from prolepsis.store import records
from prolepsis.store.database import Database, store_url
from prolepsis.store.migrate import newest_revision, revision
from prolepsis.store.migrate import upgrade as upgrade_schema

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


app = command_group("Look after the store of records, policies and the audit log.")

_DAY_S = 86400.0


@app.command(epilog=EPILOG)
def status(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show where the store is, its schema and what it holds."""
    with configured_database(store) as database:
        found = revision(database)
        facts: dict[str, object] = {"store": database.name, "schema": found, "newest schema": newest_revision()}
        if found == newest_revision():
            with database.read() as connection:
                facts["request records"] = records.count(connection)
                facts["audit entries"] = chain.head(connection)[0]
                facts["policy version"] = versions.current_version(connection)
    _show(facts, as_json=as_json)


@app.command(epilog=EPILOG)
def upgrade(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Make the store, or bring its schema to this version's; `serve` does that too."""
    with configured_database(store) as database:
        before = revision(database)
        upgrade_schema(database)
        _show({"store": database.name, "schema before": before, "schema": revision(database)}, as_json=as_json)


@app.command(epilog=EPILOG)
def prune(
    days: Annotated[float, typer.Option(min=0, help="delete request records that ended longer ago")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete old request records; the audit log stays whole."""
    with ready_database(store) as database:
        number = records.prune(database, time.time() - days * _DAY_S)
        with database.write() as connection:
            event = AuditEvent(actor=_actor(), action="records.pruned", after={"request_records": number, "days": days})
            chain.append(connection, [event])
        _show({"store": database.name, "request records deleted": number}, as_json=as_json)


@app.command("forget-tenant", epilog=EPILOG)
def forget(
    tenant: Annotated[str, typer.Argument(help="as its keys name it")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete a tenant's request records and erase what the audit log tells about it; the chain still verifies."""
    with ready_database(store) as database:
        forgotten = forget_tenant(database, tenant, _actor())
    facts: dict[str, object] = {
        "request records deleted": forgotten.num_records,
        "audit entries erased": len(forgotten.entry.erases),
        "by audit entry": forgotten.entry.seq,
    }
    _show(facts, as_json=as_json)


def _actor() -> str:
    try:
        name = getuser()
    except (KeyError, OSError):  # a container may run as a user without a name
        name = f"user {os.getuid()}"
    return f"command line, {name}"


def _show(facts: dict[str, object], *, as_json: bool) -> None:
    if as_json:
        print_json({name.replace(" ", "_"): value for name, value in facts.items()})
    else:
        print_facts(list(facts.items()))
