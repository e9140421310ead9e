"""`prolepsis store`: the database of request records, policies, rollouts and the audit log."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from prolepsis.audit import chain
from prolepsis.audit.log import forget_tenant
from prolepsis.audit.signing import OPTION, AuditKeys, key_file
from prolepsis.cli.acts import actor
from prolepsis.cli.documents import print_reply
from prolepsis.cli.flags import settings_here
from prolepsis.cli.output import EPILOG, AsJson, command_group
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.policy import versions
from prolepsis.store import records
from prolepsis.store.database import Database, store_url
from prolepsis.store.migrate import NEWEST, revision
from prolepsis.store.migrate import upgrade as upgrade_schema

StoreOption = Annotated[
    str | None,
    typer.Option("--store", metavar="URL", help="sqlite:///FILE or postgresql://...; default: the configured store"),
]


@contextmanager
def configured_database(given: str | None) -> Iterator[Database]:
    """Open the database with any schema; raises `ConfigError` if none is configured."""
    config = settings_here(store=given).server
    url = store_url(config.store)
    if url is None:
        raise ConfigError("no store is configured (store is none); name one with --store", param="store")
    database = Database(url, options={OPTION: AuditKeys(key_file(config))})
    try:
        yield database
    finally:
        database.close()


@contextmanager
def ready_database(given: str | None) -> Iterator[Database]:
    """Open the database; raises `ConfigError` unless it has the schema of this version."""
    with configured_database(given) as database:
        found = revision(database)
        if found is None:
            raise ConfigError(f"there is no store at {database.name}; `prolepsis serve` creates it", param="store")
        if found != NEWEST:
            message = f"store {database.name} has the older schema {found}; `prolepsis store upgrade` upgrades it"
            raise ConfigError(message, param="store")
        yield database


app = command_group("Maintain the database of request records, policies, rollouts and the audit log.")

_DAY_S = 86400.0


@app.command(epilog=EPILOG)
def status(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show the address, schema and contents of the store."""
    with configured_database(store) as database:
        found = revision(database)
        facts: dict[str, object] = {"store": database.name, "schema": found, "newest_schema": NEWEST}
        if found == NEWEST:
            with database.read() as connection:
                facts["request_records"] = records.count(connection)
                facts["audit_entries"] = chain.head(connection)[0]
                facts["policy_version"] = versions.current_version(connection)
    print_reply(facts, as_json=as_json)


@app.command(epilog=EPILOG)
def upgrade(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Create the store, or upgrade its schema to this version; `serve` does so too."""
    with configured_database(store) as database:
        before = revision(database)
        upgrade_schema(database)
        if before not in (None, NEWEST):
            event = AuditEvent(
                actor=actor(), action="store.upgraded", before={"schema": before}, after={"schema": NEWEST}
            )
            with database.write() as connection:
                chain.append(connection, [event])
        print_reply({"store": database.name, "schema_before": before, "schema": revision(database)}, as_json=as_json)


@app.command(epilog=EPILOG)
def prune(
    days: Annotated[float, typer.Option(min=0, help="delete records of requests that ended longer ago")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete old request records; the audit log stays complete."""
    with ready_database(store) as database:
        number = records.prune(database, time.time() - days * _DAY_S)
        with database.write() as connection:
            event = AuditEvent(actor=actor(), action="records.pruned", after={"request_records": number, "days": days})
            chain.append(connection, [event])
        print_reply({"store": database.name, "request_records_deleted": number}, as_json=as_json)


@app.command("forget-tenant", epilog=EPILOG)
def forget(
    tenant: Annotated[str, typer.Argument(help="name of the tenant, as in its keys")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete the request records of a tenant and erase its details in the audit log; the chain still verifies."""
    with ready_database(store) as database:
        forgotten = forget_tenant(database, tenant, actor())
    facts: dict[str, object] = {
        "request_records_deleted": forgotten.num_records,
        "audit_entries_erased": len(forgotten.entry.erases),
        "by_audit_entry": forgotten.entry.seq,
    }
    print_reply(facts, as_json=as_json)
