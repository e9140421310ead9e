"""`prolepsis store`: the database of request records, policies, rollouts and the audit log."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

import typer

from prolepsis.control.audit import chain, waiting
from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.audit.log import forget_tenant
from prolepsis.control.audit.retention import OldText, TextRetention, erase_old_texts, old_texts
from prolepsis.control.cost.commands import prices
from prolepsis.control.policy import versions
from prolepsis.control.store import records
from prolepsis.control.store.configured import StoreOption, configured_database, ready_database
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import NEWEST, revision
from prolepsis.control.store.migrate import upgrade as upgrade_schema
from prolepsis.control.store.signing import found_keys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import ConfigError
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import AsJson, command_group, note
from prolepsis.engine.kept_prefixes import forget_prefixes


@contextmanager
def signing_database(given: str | None) -> Iterator[Database]:
    """Open the database to change what its chains are about; raises `ConfigError` unless this user may sign them."""
    keys = found_keys(settings_here(store=given).server)
    with ready_database(given, keys.options) as database:
        with database.read() as connection:
            fault = waiting.signing_fault(connection, keys)
        if fault:
            raise ConfigError(fault, param="audit_key")
        yield database


app = command_group("Maintain the database of request records, policies, rollouts and the audit log.")
app.command()(prices)


@app.command()
def status(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show the address, schema and contents of the store."""
    with configured_database(store) as database:
        schema = revision(database)
        facts: dict[str, object] = {"store": database.name, "schema": schema, "newest_schema": NEWEST}
        if schema == NEWEST:
            with database.read() as connection:
                facts["request_records"] = records.count(connection)
                facts["audit_entries"] = chain.head(connection)[0]
                facts["acts_waiting_for_a_server"] = waiting.number(connection)
                facts["policy_version"] = versions.current_version(connection)
    print_reply(facts, as_json=as_json)


@app.command()
def upgrade(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Create the store, or upgrade its schema to this version; `serve` does so too."""
    with configured_database(store) as database:
        before = revision(database)
        upgrade_schema(database)
        if before not in (None, NEWEST):
            event = AuditEvent(
                actor=actor(), action="store.upgraded", before={"schema": before}, after={"schema": NEWEST}
            )
            record_act(event, store=store)
        print_reply({"store": database.name, "schema_before": before, "schema": revision(database)}, as_json=as_json)


@app.command()
def prune(
    days: Annotated[
        float | None,
        typer.Option(min=0, help="delete records of requests that ended longer ago; default: store_retention_days"),
    ] = None,
    text_days: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="erase texts of requests in the audit log that are older, of every tenant; default: "
            "audit_text_days and audit_text_days_by_tenant",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask")] = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete old request records and erase old texts in the audit log; 0 days: never. Its chain still verifies."""
    config = settings_here(store=store).server
    record_days = config.store_retention_days if days is None else days
    texts = TextRetention.of(config) if text_days is None else TextRetention(text_days)
    now = time.time()
    before = now - record_days * DAY_S if record_days else 0.0
    with signing_database(store) as database:
        with database.read() as connection:
            num_records, old = records.count(connection, before), old_texts(connection, texts, now)
        if (num_records or old) and not yes:
            note(_due(num_records, record_days, old))
            typer.confirm("Delete them?", abort=True, err=True)
        number = records.prune(database, before)
        num_texts = erase_old_texts(database, texts, now, actor=actor())
        after = {"request_records": number, "days": record_days, "texts": num_texts, "text_days": asdict(texts)}
        with database.write() as connection:
            chain.append(connection, [AuditEvent(actor=actor(), action="records.pruned", after=after)])
        facts = {"store": database.name, "request_records_deleted": number, "audit_texts_erased": num_texts}
        print_reply(facts, as_json=as_json)


def _due(num_records: int, days: float, old: Sequence[OldText]) -> str:
    """Say what is to be deleted."""
    by_tenant = Counter(text.tenant or "no tenant" for text in old)
    tenants = ", ".join(f"{name}: {number}" for name, number in by_tenant.most_common())
    texts = f", from {old[0].at[:10]} to {old[-1].at[:10]} ({tenants})" if old else ""
    return (
        f"{num_records} request records older than {days:g} days, and the texts of {len(old)} requests in the audit "
        f"log{texts}"
    )


@app.command("forget-tenant")
def forget(
    tenant: Annotated[str, typer.Argument(help="name of the tenant, as in its keys")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete the request records of a tenant and erase its details in the audit log; the chain still verifies.

    Draft heads that learnt from its requests leave service. What the engines of this machine keep of its prompts on
    disk is deleted too.
    """
    from prolepsis.control.learning.commands import blocks_of, delete_folders, policy_here

    with signing_database(store) as database:
        blocks = blocks_of(policy_here(settings_here(store=store), database))
        later = [rule for rule, terms in blocks.items() if terms.on_forget == "next"]
        forgotten = forget_tenant(database, tenant, actor(), later=later)
        delete_folders(database)
    forget_prefixes(tenant)
    facts: dict[str, object] = {
        "request_records_deleted": forgotten.num_records,
        "examples_deleted": forgotten.learnt.num_examples,
        "heads_retired": list(forgotten.learnt.retired),
        "heads_retired_at_next_promotion": list(forgotten.learnt.touched),
        "audit_entries_erased": len(forgotten.entry.erases),
        "by_audit_entry": forgotten.entry.seq,
    }
    print_reply(facts, as_json=as_json)
