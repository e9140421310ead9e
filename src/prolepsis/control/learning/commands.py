"""`prolepsis learning`: what is learnt from, the heads that came of it, forgetting, and runs by hand."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.policy.check import read_policy
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.policy.model import Policy
from prolepsis.control.policy.source import StoredPolicy
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import RunTable, forget
from prolepsis.control.store.signing import found_keys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.extras import named
from prolepsis.core.files import replacing
from prolepsis.core.learning import LearningRun, run_folders
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import FAILED, AsJson, command_group

app = command_group("Learn draft heads from requests that agree: examples, runs, heads, and forgetting.")


def policy_here(settings: Settings, database: Database) -> Policy | None:
    """Return the policy that servers of these settings and this store follow; None if it is not known here."""
    file = settings.server.policy
    return read_policy(file)[0] if file else StoredPolicy(database).policy


def blocks_of(policy: Policy | None) -> Mapping[str, LearningTerms]:
    """Return the terms of learning by rule."""
    rules = policy.named_terms() if policy else ()
    return {rule: terms.learning for rule, terms in rules if terms.learning is not None}


@contextmanager
def _opened(store: str | None) -> Iterator[tuple[Database, Settings, Policy | None]]:
    settings = settings_here(store=store)
    with ready_database(store, found_keys(settings.server).options) as database:
        yield database, settings, policy_here(settings, database)


@app.command()
def status(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show what is kept to learn from, the run that is under way, and the heads that were learnt."""
    from prolepsis.control.learning.shown import COLUMNS, shown

    with _opened(store) as (database, _, policy):
        reply = shown(database, None if policy is None else blocks_of(policy))
    print_reply(asdict(reply), COLUMNS, as_json=as_json)


@app.command()
def export(
    rule: Annotated[str, typer.Argument(help="a rule whose block `learning` says who agreed")],
    to: Annotated[Path, typer.Option(help="file for JSON lines, which only you may read")],
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the examples of a rule to a file, as token ids; the audit log has it."""
    number = 0
    with _opened(store) as (database, _, _), replacing(to, mode=0o600) as part, part.open("w") as out:
        for example in ExampleTable(database).read(rule):
            out.write(example.to_json() + "\n")
            number += 1
    event = AuditEvent(actor=actor(), action="learning.exported", subject=rule, after={"examples": number})
    record_act(event, store=store)
    print_reply({"rule": rule, "examples": number, "file": str(to)}, as_json=as_json)


@app.command("forget")
def forget_examples(
    tenant: Annotated[str | None, typer.Argument(help="tenant whose examples go; default: all, of one rule")] = None,
    request: Annotated[str, typer.Option(help="id of one request")] = "",
    rule: Annotated[str, typer.Option(help="only what was kept for this rule")] = "",
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Delete examples for good, and bar the heads that learnt from them; servers drop these within seconds."""
    with _opened(store) as (database, _, policy):
        later = [name for name, terms in blocks_of(policy).items() if terms.on_forget == "next"]
        gone = forget(database, tenant=tenant, request_id=request, rule=rule, later=later)
        delete_folders(database)
    facts = {"examples_deleted": gone.num_examples, "retired": gone.retired, "retired_next": gone.touched}
    after = {"rule": rule, **facts}
    event = AuditEvent(actor=actor(), action="learning.forgotten", subject=rule, after=after, tenant=tenant or "")
    record_act(event, store=store)
    print_reply(facts, as_json=as_json)


@app.command()
def run(
    rule: Annotated[str, typer.Argument(help="a rule that learns; with --wait, default: any")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="carry out runs as they become due, until one fails")] = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Train a head on a rule's examples, on any machine with the store; a run that was interrupted goes on."""
    with _opened(store) as (database, settings, policy):
        while True:
            ended: LearningRun = named("training.learning:run_learning")(
                settings, database, rule, None if wait else blocks_of(policy)
            )
            shown = ("rule", "phase", "outcome", "head", "reason", "processor_s")
            print_reply({name: getattr(ended, name) for name in shown}, as_json=as_json)
            if not wait:
                raise typer.Exit(FAILED if ended.phase == "ended" else 0)


def delete_folders(database: Database) -> None:
    """Delete what runs left on this machine, but for one that a process holds: it looks for itself."""
    runs = RunTable(database)
    run, now = runs.read(), runs.now()
    for folder in run_folders(database.name).glob("*"):
        if folder.name != run.run_id or run.leased_until < now:
            shutil.rmtree(folder)
