"""`prolepsis learning run`: takes the run of a rule, and carries it out with the rest of the machine first."""

import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import inf

import structlog

from prolepsis.control.learning.machine import Taken, champion_of, step
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.database import Database
from prolepsis.control.store.lineage import LineageTable, RunTable
from prolepsis.core.errors import ConfigError
from prolepsis.core.learning import LearningRun, run_folders
from prolepsis.core.telemetry.logs import configure_logs
from prolepsis.core.terminal.config import Settings
from prolepsis.core.terminal.output import quiet_logs, stderr
from prolepsis.engine.commands.downloads import ensure_model
from prolepsis.engine.models.files.store import resolve
from prolepsis.engine.models.load import identity_of
from prolepsis.training.held_run import LEASE_S, HeldRun
from prolepsis.training.job import STEPS, Progress, learn
from prolepsis.training.report import progress_bar

TARGET_DIGITS = 16  # of a target's identity, as servers know it
_LINE_S, _WAIT_S = 60.0, 30.0

log = structlog.get_logger(__name__)


def run_learning(
    settings: Settings, database: Database, rule: str, blocks: Mapping[str, LearningTerms] | None
) -> LearningRun:
    """Train for a rule, and return the run as it stands then; raises `ConfigError` for one that cannot be taken here.

    `blocks`: terms by rule, from which a run begins where none is due; None: wait for one that is, of any rule if
    `rule` is empty.
    """
    ensure_model(settings)
    engine, runs = settings.engine, RunTable(database)
    identity = identity_of(resolve(engine.model, engine.model_dir))
    due = None
    if blocks is not None and rule in blocks:
        due = LearningRun(
            rule=rule,
            trigger="hand",
            model=engine.model,
            target=identity[:TARGET_DIGITS],
            parent=champion_of(LineageTable(database).heads(), [rule], to_learn_from=True),
            terms=blocks[rule].model_dump(mode="json"),
        )
    while isinstance(run := take(runs, rule, due, identity, store=database.name), str):
        if blocks is not None:
            learn_too = "" if due else f"; rules of the policy in use that learn: {', '.join(blocks) or 'none'}"
            raise ConfigError(f"{run}{learn_too}", param="rule")
        log.info("learning_waits", reason=run)
        time.sleep(_WAIT_S)
    os.nice(19)  # the lowest priority
    with _shown(run.rule) as say:
        return learn(engine, database, HeldRun(runs, run), say=say)


def take(runs: RunTable, rule: str, due: LearningRun | None, identity: str, *, store: str) -> LearningRun | str:
    """Return the run of a rule (empty: of any), held by this process from now on; or why it cannot be.

    `due` begins one where none is under way; one that had spent its budget goes on. `identity`: of the target here.
    """
    while True:
        stored, now = runs.read(), runs.now()
        given = stored
        if stored.phase == "ended" and due is not None:
            is_left = stored.outcome == "stopped" and (run_folders(store) / stored.run_id).is_dir()
            if is_left and (stored.rule, stored.target) == (rule, due.target):
                given = replace(stored, phase="training", outcome=None, reason="", processor_s=0.0, terms=due.terms)
            else:
                given, _ = step(stored, due, now)
        after, _ = step(given, Taken(f"{socket.gethostname()} {os.getpid()}", now + LEASE_S), now)
        if given.phase == "ended":
            return f"no run{rule and f' of {rule}'} is due"
        if rule not in ("", given.rule):
            return f"a run of {given.rule} is under way ({given.phase}), and there is one at a time"
        if not identity.startswith(given.target):
            return (
                f"the run of {given.rule} is for the weights {given.target} of {given.model}, and the model here has "
                f"{identity[:TARGET_DIGITS]}: name that one (PROLEPSIS_MODEL), or end the run with PUT /admin/learning"
            )
        if after == given:
            until = f"{given.holder} holds it for {given.leased_until - now:.0f} s more"
            return f"the run of {given.rule} is under way: {until if given.phase == 'training' else given.phase}"
        if runs.swap(after):
            return replace(after, version=after.version + 1)


@contextmanager
def _shown(rule: str) -> Iterator[Progress]:
    """Yield what shows progress: bars on a terminal, else a line of the log once a minute."""
    if stderr().is_terminal:
        quiet_logs()
        with progress_bar() as bar:
            tasks = {name: bar.add_task(name, total=None, status="", visible=False) for name in STEPS}
            yield lambda name, done, total, status: bar.update(
                tasks[name], completed=done, total=total, status=status, visible=True
            )
        return
    configure_logs("info")
    told = -inf

    def tell(name: str, done: int, total: int, status: str) -> None:
        nonlocal told
        if time.monotonic() - told >= _LINE_S:
            told = time.monotonic()
            log.info("learning_progress", rule=rule, step=f"{name} {done}/{total}", figures=status)

    yield tell
