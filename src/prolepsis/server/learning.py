"""What learning needs of this machine: a process that trains with the settings of the server."""

import json
import sys
from collections.abc import Mapping
from functools import partial
from os import environ
from pathlib import Path
from subprocess import STDOUT, Popen

from prolepsis.control.drafts.heads import DraftHeads
from prolepsis.control.learning.following import HeadFolder
from prolepsis.control.learning.routes import learning_routes
from prolepsis.control.learning.runtime import LearningFeature
from prolepsis.control.replicas.registry import ReplicaRegistry
from prolepsis.control.web.context import Context
from prolepsis.core.learning import LearningRun, report_folder
from prolepsis.core.terminal.config import environment_name, field_names
from prolepsis.server.speculation_control import SpeculationControl


def learning(
    context: Context, control: SpeculationControl, swaps: DraftHeads, replicas: ReplicaRegistry
) -> LearningFeature:
    feature = LearningFeature(
        context,
        control.policies,
        control.rollouts,
        swaps,
        folder=HeadFolder(context.engine.model_dir),
        start=partial(start_run, context),
        against=control.health.against,
        targets=lambda: {each.group.weights for each in replicas.shown().replicas if each.state != "lost"},
    )
    feature.routes = learning_routes(feature)
    return feature


def start_run(context: Context, run: LearningRun) -> "Popen[bytes]":
    """Start the process of a run with this server's settings; what it prints is beside its report."""
    home = report_folder(run.run_id)
    command = [sys.executable, "-c", "from prolepsis.server.cli.main import app; app()", "learning", "run", run.rule]
    variables = variables_of(context, home / "settings.json", environ)
    with (home / "output.log").open("ab") as output:
        return Popen(command, env=variables, stdout=output, stderr=STDOUT)  # noqa: S603  # our own command


def variables_of(context: Context, file: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment that gives a process this server's engine and store, whatever gave them to the server.

    Settings of the engine are written to `file`; the store's, which may have a password, are in no file.
    """
    file.write_text(json.dumps(context.engine.model_dump(mode="json", exclude_unset=True)))
    others = environment.keys() - {environment_name(name) for name in field_names()}
    config = context.config
    given = {"store": config.store, "audit_key": config.audit_key, "policy": config.policy, "config": file}
    own = {environment_name(name): str(value) for name, value in given.items() if value is not None}
    return {name: environment[name] for name in others} | own
