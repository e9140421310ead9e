"""`prolepsis learning`: what is learnt from, the heads that came of it, forgetting, and runs by hand."""

import json
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from prolepsis.control.audit.commands.acts import actor, record_act
from prolepsis.control.learning.machine import Ended, Retire, step
from prolepsis.control.policy import versions
from prolepsis.control.policy.check import parse_policy, read_policy
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.policy.model import Policy
from prolepsis.control.store.configured import StoreOption, ready_database
from prolepsis.control.store.database import Database
from prolepsis.control.store.examples import ExampleTable
from prolepsis.control.store.lineage import LineageTable, RunTable, forget
from prolepsis.control.store.signing import found_keys
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import named
from prolepsis.core.files import replacing
from prolepsis.core.learning import LearningRun, run_folders
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.documents import print_reply
from prolepsis.core.terminal.flags import settings_here
from prolepsis.core.terminal.output import FAILED, AsJson, command_group, note

app = command_group("Learn draft heads from requests that agree: examples, runs, heads, and forgetting.")

_ENDED = ("rule", "phase", "outcome", "head", "reason", "processor_s")
Rule = Annotated[str, typer.Argument(help="a rule whose block `learning` says who agreed")]


def blocks_here(settings: Settings, database: Database) -> Mapping[str, LearningTerms]:
    """Return the terms of learning by rule, of the policy that servers of these settings and this store follow."""
    if file := settings.server.policy:
        policy, _ = read_policy(file)
    else:
        with database.read() as connection:
            stored = versions.current(connection)
        policy = parse_policy(stored.text, f"version {stored.version}")[0] if stored else Policy(version="none")
    return {rule: terms.learning for rule, terms in policy.named_terms() if terms.learning is not None}


class _Opened(ExitStack):
    """The store and the settings of a command."""

    def __init__(self, store: str | None, **flags: object) -> None:
        super().__init__()
        self.settings = settings_here(store=store, **flags)
        self.database = self.enter_context(ready_database(store, found_keys(self.settings.server).options))

    @property
    def blocks(self) -> Mapping[str, LearningTerms]:
        return blocks_here(self.settings, self.database)


@app.command()
def status(store: StoreOption = None, as_json: AsJson = False) -> None:
    """Show what is kept to learn from, the run that is under way, and the heads that were learnt."""
    from prolepsis.control.learning.shown import COLUMNS, shown

    with _Opened(store) as opened:
        reply = shown(opened.database, opened.blocks)
    print_reply(asdict(reply), COLUMNS, as_json=as_json)


@app.command()
def export(
    rule: Rule,
    to: Annotated[Path, typer.Option(help="file for JSON lines, which only you may read")],
    text: Annotated[
        bool, typer.Option("--text", help="text in place of token ids, as the configured model reads")
    ] = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Write the examples of a rule to a file; the audit log has it."""
    with _Opened(store) as opened:
        decode = None
        if text:
            engine = opened.settings.engine
            decode = named("training.target:open_target")(engine.model, engine.model_dir).tokenizer.decode
        number = 0
        with replacing(to, mode=0o600) as part, part.open("w") as out:
            for example in ExampleTable(opened.database).read(rule):
                plain = asdict(example)
                if decode is not None:
                    plain |= {name: decode([*plain[name]]) for name in ("prompt", "answer")}
                out.write(json.dumps(plain) + "\n")
                number += 1
    event = AuditEvent(
        actor=actor(), action="learning.exported", subject=rule, after={"examples": number, "text": text}
    )
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
    with _Opened(store) as opened:
        later = [name for name, terms in opened.blocks.items() if terms.on_forget == "next"]
        forgotten = forget(opened.database, tenant=tenant, request_id=request, rule=rule, later=later)
        delete_folders(opened.database)
    after = {**asdict(forgotten), "rule": rule}
    event = AuditEvent(actor=actor(), action="learning.forgotten", subject=rule, after=after, tenant=tenant or "")
    record_act(event, store=store)
    facts = {
        "examples_deleted": forgotten.num_examples,
        "retired": forgotten.retired,
        "retired_next": forgotten.touched,
    }
    print_reply(facts, as_json=as_json)


@app.command()
def run(  # noqa: PLR0917  # options of a command
    rule: Annotated[str, typer.Argument(help="a rule that learns; with --wait, default: any")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="carry out runs as they become due, until one fails")] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads, at most the share in the block")] = None,
    stop: Annotated[bool, typer.Option("--stop", help="end the run that is under way, wherever it runs")] = False,
    store: StoreOption = None,
    as_json: AsJson = False,
) -> None:
    """Train a head on a rule's examples, on any machine with the store; a run that was interrupted goes on."""
    with _Opened(store, threads=threads) as opened:
        if stop:
            stop_run(opened.database, rule)
            note("the run has ended")
            return
        learn = partial(named("training.learning:run_learning"), opened.settings, opened.database, rule)
        while True:
            ended: LearningRun = learn(None if wait else opened.blocks)
            print_reply({name: getattr(ended, name) for name in _ENDED}, as_json=as_json)
            if not wait:
                break
    if ended.phase == "ended":
        raise typer.Exit(FAILED)


def delete_folders(database: Database) -> None:
    """Delete what runs left on this machine, but for one that a process holds: it looks for itself."""
    runs = RunTable(database)
    run, now = runs.read(), runs.now()
    for folder in run_folders(database.name).glob("*"):
        if folder.name != run.run_id or run.leased_until < now:
            shutil.rmtree(folder)


def stop_run(database: Database, rule: str) -> None:
    """End the run that is under way; raises `ConfigError` if there is none of the rule (empty: of any)."""
    runs = RunTable(database)
    while True:
        stored = runs.read()
        if stored.phase == "ended" or rule not in ("", stored.rule):
            raise ConfigError(f"no run{rule and f' of {rule}'} is under way", param="rule")
        after, acts = step(stored, Ended("stopped", f"by {actor()}"), runs.now())
        for act in acts:
            if isinstance(act, Retire):
                LineageTable(database).retire(act.head, act.why)
        if runs.swap(after):
            return
