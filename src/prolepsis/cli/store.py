"""`prolepsis store`: the database of request records, plans, rollouts and the audit log."""

import os
import time
from getpass import getuser
from typing import Annotated

import typer

from prolepsis.cli.groups import AsJson, command_group
from prolepsis.cli.output import EPILOG, print_facts, print_json
from prolepsis.cli.stores import StoreOption, configured_database, ready_database
from prolepsis.store import plans, records
from prolepsis.store.audit import chain
from prolepsis.store.audit.entry import Act
from prolepsis.store.migrate import newest_revision, revision
from prolepsis.store.migrate import upgrade as upgrade_schema
from prolepsis.store.store import forget_tenant

app = command_group("Look after the store of records, plans and the audit log.")

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
                facts["plan version"] = plans.current_version(connection)
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
            act = Act(actor=_actor(), action="records.pruned", after={"request_records": number, "days": days})
            chain.append(connection, [act])
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
