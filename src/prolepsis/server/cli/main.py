"""The `prolepsis` command: a table of commands, each imported when it runs, and the place where errors end."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from prolepsis import __version__
from prolepsis.core.errors import ProlepsisError
from prolepsis.core.extras import named, not_installed
from prolepsis.core.memory_failures import memory_failure
from prolepsis.core.terminal.output import EPILOG, HELP_FLAGS, INTERRUPTED, exit_status, print_error, warn

if TYPE_CHECKING:
    from prolepsis.core.engine_client import EngineClient
    from prolepsis.core.terminal.config import Settings

PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Serve and generate": {
        "serve": ("server.cli.serve:serve", "Serve a model over HTTP with OpenAI's API."),
        "generate": ("server.cli.generate:generate", "Print the continuation of a prompt while it is generated."),
        "chat": ("server.cli.chat:chat", "Talk with a running server, and see which proposer drafted what."),
        "batch": ("server.cli.batch:app", "Run a file of requests without a server."),
        "propose-server": ("server.cli.propose_server:propose_server", "Draft for engines in other processes."),
    },
    "Check and measure": {
        "check": ("lab.check.command:check", "Say in minutes whether speculation is worth a pilot on your traffic."),
        "exact": ("lab.exact:exact", "Check on your own prompts that speculation changes no token."),
        "bench": ("lab.bench:bench", "Measure decoding with and without speculation side by side."),
        "profile": ("lab.profile:profile", "Measure what a forward pass costs here; show the self-check."),
        "load": ("lab.load:load", "Put load on a server, with and without speculation side by side."),
        "drill": ("lab.drills.command:app", "Inject faults into a drained server, and judge how it takes them."),
        "rehearse": ("lab.rehearse:app", "Forecast what speculation would do to recorded traffic."),
        "doctor": ("lab.doctor.command:doctor", "Check whether a machine, its settings and its server are ready."),
        "tune": ("lab.tune:tune", "Search a policy and settings for a goal, in rehearsals of traffic."),
        "workload": (
            "lab.workload.command:workload",
            "Show what requests are like, and what proposers may gain by it.",
        ),
    },
    "Control speculation": {
        "policy": ("server.cli.policy:app", "Check, compare, explain, apply and roll back policies."),
        "rollout": ("control.rollout.commands:rollout", "Show and control the rollouts of a running server."),
        "shadow": (
            "control.rollout.commands:shadow",
            "Show what speculation would gain, from requests in shadow mode.",
        ),
        "kill": (
            "control.controls.commands.kill:app",
            "Stop speculation, everywhere or in one scope, and allow it again.",
        ),
        "flags": ("control.controls.commands.flags:flags", "Show, set and remove feature flags of all replicas."),
        "breaker": ("control.health.commands:breaker", "Show and set the circuit breakers of a running server."),
        "heads": ("control.drafts.commands:heads", "Show and swap the draft heads of a running server."),
    },
    "Observe servers": {
        "status": ("control.verdict.commands:status", "Say for each rule whether its speculation should be kept."),
        "replicas": ("control.replicas.commands:replicas", "Show the servers that share a store, and their engines."),
        "correctness": (
            "control.correctness.commands:correctness",
            "Show how many replayed requests match plain decoding.",
        ),
        "cost": ("control.cost.commands:app", "Show what requests cost and what speculation saves."),
        "delivery": ("server.output.commands:delivery", "Show how many accepted draft tokens reached clients."),
        "drift": ("control.health.commands:drift", "Show how the acceptance of proposers changed."),
        "incident": ("ops.incident.commands.incident:app", "Show what happened, and hand it over in one file."),
        "pilot": ("ops.incident.commands.pilot:app", "Compare speculating with control requests of a running server."),
        "review": ("ops.incident.commands.review:review", "Write the document for a review of a day to a quarter."),
        "monitoring": ("ops.monitoring.commands:app", "Write rules, alerts and dashboards for a monitoring system."),
    },
    "Keys and records": {
        "keys": ("server.front.key_commands:app", "Create, list and revoke API keys."),
        "store": ("server.cli.store:app", "Maintain the database of records, policies and the audit log."),
        "audit": ("control.audit.commands.group:app", "Verify, show, export and replay the audit log."),
    },
    "Models and training": {
        "models": ("server.cli.models:app", "Download, list, export and import models and draft heads."),
        "train": ("training.commands:app", "Train draft heads on the target's own text."),
    },
}
"""Commands by the panel of the help: name -> (module of prolepsis:function or Typer application, one line of help)."""
COMMANDS = {name: command for commands in PANELS.values() for name, command in commands.items()}


class Commands(TyperGroup):
    """Imports a command when it runs, and turns every `ProlepsisError` into one line and an exit status."""

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


class Command(TyperCommand):
    """Lists its options below the title of their panel; a name is never cut, however narrow the terminal."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                panels.setdefault(_panel_of(param), []).append(record)
        for title, records in panels.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _panel_of(param: Any) -> str:
    return param.rich_help_panel or f"{param.param_type_name.capitalize()}s"


app = typer.Typer(
    cls=Commands,
    help="Serves language models with speculative decoding: the target model's own output, in fewer passes.",
    epilog=EPILOG,
    no_args_is_help=True,
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


def _placeholder() -> None:
    """Stand for a command that is not imported yet; never called."""


for _panel, _commands in PANELS.items():
    for _name, (_target, _help) in _commands.items():
        app.command(_name, help=_help, rich_help_panel=_panel)(_placeholder)


def load_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    target, _ = COMMANDS[name]
    value = named(target)
    if not isinstance(value, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        single.command(name, cls=Command, epilog=EPILOG, context_settings=HELP_FLAGS)(value)
        value = single
    return typer.main.get_command(value)
