"""What learning needs of this machine: the folder of its user's heads, and a process that trains."""

import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import environ
from pathlib import Path
from subprocess import STDOUT, Popen

from prolepsis.control.drafts.heads import DraftHeads
from prolepsis.control.learning.routes import learning_routes
from prolepsis.control.learning.runtime import LearningFeature
from prolepsis.control.replicas.registry import ReplicaRegistry
from prolepsis.control.web.context import Context
from prolepsis.core.errors import ModelLoadError
from prolepsis.core.extras import named
from prolepsis.core.files import data_directory
from prolepsis.core.learning import LearningRun
from prolepsis.core.terminal.config import environment_name, field_names
from prolepsis.server.speculation_control import SpeculationControl

_HEADS = "engine.models.heads"
_COMMAND = "from prolepsis.server.cli.main import app; app()"


@dataclass(frozen=True, slots=True)
class HeadFolder:
    """The user's heads beside the models in `root`; None: in the cache directory."""

    root: Path | None

    def install(self, label: str, archive: bytes) -> None:
        named(f"{_HEADS}.exchange:import_archive")(archive, label, self.root)

    def give_alias(self, label: str, alias: str) -> None:
        name, _, version = label.partition("@")
        named(f"{_HEADS}.aliases:HeadAliases")(self.root).set(name, alias, int(version))

    def remove(self, label: str, sha256: str) -> None:
        """Delete a head and its aliases; one of other weights, or of the package, stays."""
        with suppress(ModelLoadError):  # there is none
            entry = named(f"{_HEADS}.registry:find_head")(label, self.root)
            if entry.provenance.sha256 == sha256:
                aliases = named(f"{_HEADS}.aliases:HeadAliases")(self.root)
                for alias in aliases.of(entry.name, entry.version):
                    aliases.set(entry.name, alias, None)
                named(f"{_HEADS}.exchange:remove_head")(label, self.root)


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
    """Start the process of a run with this server's settings; what it prints is in RUN_ID.log of the data directory."""
    home = data_directory() / "learning"
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _COMMAND, "learning", "run", run.rule]
    variables = variables_of(context, home / f"{run.run_id}.json", environ)
    with (home / f"{run.run_id}.log").open("ab") as output:
        return Popen(command, env=variables, stdout=output, stderr=STDOUT)  # noqa: S603  # our own command


def variables_of(context: Context, file: Path, environment: Mapping[str, str]) -> Mapping[str, str]:
    """Return the environment that gives a process this server's engine and store, whatever gave them to the server.

    Settings of the engine are written to `file`; the store's, which may have a password, are in no file.
    """
    file.write_text(json.dumps(context.engine.model_dump(mode="json", exclude_unset=True)))
    given = {"store": context.config.store, "audit_key": context.config.audit_key, "policy": context.config.policy}
    own = {environment_name(name): str(value) for name, value in given.items() if value is not None}
    fields = {environment_name(name) for name in field_names()}
    others = {name: text for name, text in environment.items() if name not in fields}
    return {**others, **own, "PROLEPSIS_CONFIG": str(file)}
