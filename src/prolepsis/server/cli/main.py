"""The `prolepsis` command: a table of commands, each imported when it runs, and the place where errors end."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from prolepsis import __version__
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.extras import named, not_installed
from prolepsis.core.memory_failures import memory_failure
from prolepsis.core.terminal.output import HELP_FLAGS, INTERRUPTED, command_group, exit_status, print_error, warn

if TYPE_CHECKING:
    from prolepsis.core.engine_client import EngineClient
    from prolepsis.core.terminal.config import Settings

COMMANDS: dict[str, tuple[str, str, str]] = {
    "serve": ("serve", "server.cli.serve:serve", "Serve a model over HTTP with OpenAI's API."),
    "propose-server": ("serve", "server.cli.propose_server:propose_server", "Draft for engines in other processes."),
    "generate": ("ask", "server.cli.generate:generate", "Print the continuation of a prompt as it comes."),
    "chat": ("ask", "server.cli.chat:chat", "Talk with a server; colours show who drafted what."),
    "batch": ("ask", "server.cli.batch:batch", "Run a file of requests without a server."),
    "check": ("check", "lab.check.command:check", "Say in minutes whether speculation is worth a pilot."),
    "doctor": ("check", "lab.doctor.command:doctor", "Say whether machine, settings and server are ready."),
    "workload": ("check", "lab.workload.command:workload", "Show what requests are like, and what drafts may gain."),
    "exact": ("check", "lab.exact:exact", "Check on your prompts that no token changes."),
    "bench": ("check", "lab.bench:bench", "Measure decoding with and without speculation."),
    "profile": ("check", "lab.profile:profile", "Measure what a forward pass costs here."),
    "rehearse": ("check", "lab.rehearse:app", "Forecast speculation on recorded traffic."),
    "tune": ("check", "lab.tune:tune", "Search a policy and settings for a goal."),
    "load": ("check", "lab.load:load", "Put load on a server, with and without speculation."),
    "drill": ("check", "lab.drills.command:drill", "Inject faults into a drained server, and judge it."),
    "pilot": ("pilot", "ops.incident.commands.pilot:app", "Start, watch and end a pilot; report on it."),
    "policy": ("pilot", "server.cli.policy:app", "Check, compare, explain, apply, roll back policies."),
    "rollout": ("pilot", "control.rollout.commands:rollout", "Show and control rollouts."),
    "stop": ("stop", "control.controls.commands.stop:stop", "Stop speculation of everything or one scope at once."),
    "resume": ("stop", "control.controls.commands.stop:resume", "Allow again what was stopped."),
    "breaker": ("stop", "control.health.commands:breaker", "Set breakers; restart detection of drift."),
    "flags": ("stop", "control.controls.commands.flags:flags", "Show, set and remove feature flags of all replicas."),
    "status": ("look", "control.verdict.commands:status", "Say for each rule whether its speculation should be kept."),
    "show": ("look", "server.cli.show:app", "Show one view: cost, drift, breakers, replicas, ..."),
    "review": ("look", "ops.incident.commands.review:review", "Write the review of a day to a quarter."),
    "incident": ("look", "ops.incident.commands.incident:incident", "Gather what happened in one redacted file."),
    "monitoring": ("look", "ops.monitoring.commands:monitoring", "Write rules, alerts and dashboards."),
    "keys": ("keep", "server.front.key_commands:app", "Create, list and revoke API keys."),
    "store": ("keep", "server.cli.store:app", "Maintain the database of records and policies."),
    "audit": ("keep", "control.audit.commands.group:app", "Verify, show, export and replay the audit log."),
    "models": ("keep", "server.cli.models:app", "Download, show, export and import models and heads."),
    "train": ("train", "training.commands:app", "Train draft heads on the target's own text."),
    "learning": ("train", "control.learning.commands:app", "Learn heads from requests that agree, and forget."),
    "heads": ("train", "control.drafts.commands:heads", "Show and swap the draft heads of a server."),
}
"""Commands in the order of the help: name -> (what a person does, module of prolepsis:function or group, its help)."""


class FirstScreen(TyperGroup):
    """Imports a command when it runs, and turns every `ProlepsisError` into one line and an exit status."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """List each command on one line, so that all of them fit on a screen."""
        formatter.write_paragraph()
        before = ""
        for name, (act, _, text) in COMMANDS.items():
            formatter.write(f"{act if act != before else '':<7}{name:<16}{text}\n")
            before = act
        options = (option for param in self.get_params(ctx) for option in param.opts if option.startswith("--"))
        formatter.write(f"\nOptions: {', '.join(options)}\n")

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load_command(name) if name in COMMANDS else command), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ProlepsisError as error:
            shown = memory_failure(error) or error
            print_error(shown)
            raise typer.Exit(exit_status(shown)) from error
        except typer.BadParameter as error:
            from pydantic import ValidationError

            from prolepsis.core.validation import one_value

            if isinstance(error.__cause__, ValidationError):  # typer has pydantic read options, and shows its words
                error.message = one_value(error.__cause__)
            raise
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error
        except Exception as error:
            failure = not_installed(error) if isinstance(error, ImportError) else memory_failure(error)
            if failure is None:
                raise
            print_error(failure)
            raise typer.Exit(exit_status(failure)) from error


app = typer.Typer(
    cls=FirstScreen,
    help="Serves language models with speculative decoding: equal output, fewer passes.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=HELP_FLAGS,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit()


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Warn of variables that set nothing; the context's object runs an engine for commands of features."""
    from prolepsis.core.terminal.config import misspelt_variables

    for variable, near in misspelt_variables(os.environ):
        warn(f"environment variable {variable} has no effect; did you mean {near}?")
    context.obj = context.obj or _engine


@asynccontextmanager
async def _engine(settings: "Settings") -> "AsyncIterator[EngineClient]":
    from prolepsis.server.cli.engine import running

    async with running(settings) as engine:
        yield engine.client


for _name, (_act, _target, _help) in COMMANDS.items():
    app.command(_name, help=_help)(lambda: None)  # stands for a command that is not imported yet


def load_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    value = named(COMMANDS[name][1])
    if not isinstance(value, typer.Typer):
        single = command_group("")
        single.command(name)(value)
        value = single
    return typer.main.get_command(value)
