"""The `prolepsis` command: a table of commands, each imported when it runs, and the place where errors end."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prolepsis import __version__
from prolepsis.cli.output import EPILOG, HELP_FLAGS, INTERRUPTED, exit_status, print_error
from prolepsis.core.errors import ProlepsisError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("prolepsis.cli.serve:serve", "Serve a model over HTTP with OpenAI's API."),
    "propose-server": ("prolepsis.cli.propose_server:propose_server", "Draft for engines in other processes."),
    "generate": ("prolepsis.cli.generate:generate", "Print the continuation of a prompt while it is generated."),
    "bench": ("prolepsis.cli.bench.command:bench", "Measure decoding with and without speculation side by side."),
    "exact": ("prolepsis.cli.exact:exact", "Check on your own prompts that speculation changes no token."),
    "profile": ("prolepsis.cli.profile:profile", "Measure what a forward pass costs here; show the self-check."),
    "keys": ("prolepsis.cli.keys:app", "Create, list and revoke API keys."),
    "kill": ("prolepsis.cli.kill:app", "Stop all speculation on this machine or on one server, and allow it again."),
    "flags": ("prolepsis.cli.admin:flags", "Show, set and remove feature flags of all replicas."),
    "breaker": ("prolepsis.cli.admin:breaker", "Show and set the circuit breakers of a running server."),
    "policy": ("prolepsis.cli.policy:app", "Check, compare, explain, apply and roll back policies."),
    "rollout": ("prolepsis.cli.admin:rollout", "Show and control the rollouts of a running server."),
    "replicas": ("prolepsis.cli.admin:replicas", "Show the servers of a store and the engines behind them."),
    "correctness": ("prolepsis.cli.admin:correctness", "Show how many replayed requests match plain decoding."),
    "cost": ("prolepsis.cli.cost:app", "Show what requests cost and what speculation saves."),
    "delivery": ("prolepsis.cli.admin:delivery", "Show how many accepted draft tokens reached clients."),
    "shadow": ("prolepsis.cli.admin:shadow", "Show what speculation would gain, from requests in shadow mode."),
    "drift": ("prolepsis.cli.admin:drift", "Show changes of the acceptance of proposers."),
    "audit": ("prolepsis.cli.audit:app", "Verify, show, export and replay the audit log."),
    "incident": ("prolepsis.cli.incident:app", "Show what happened, and hand it over in one file."),
    "review": ("prolepsis.cli.review:review", "Write the pack for a weekly review."),
    "store": ("prolepsis.cli.store:app", "Maintain the database of records, policies and the audit log."),
    "heads": ("prolepsis.cli.admin:heads", "Show and swap the draft heads of a running server."),
    "monitoring": ("prolepsis.cli.monitoring:app", "Write rules, alerts and dashboards for a monitoring system."),
    "train": ("prolepsis.cli.train:app", "Train draft heads and draft models on the target's own text."),
    "models": ("prolepsis.cli.models:app", "Download, list, export and import models and draft heads."),
}
"""Name -> (module:function or Typer application, one line of help)."""


class Commands(TyperGroup):
    """Imports a command when it runs, and turns every `ProlepsisError` into one line and an exit status."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, (load_command(name) if name in COMMANDS else command), rest

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ProlepsisError as error:
            print_error(error)
            raise typer.Exit(exit_status(error)) from error
        except KeyboardInterrupt as error:
            raise typer.Exit(INTERRUPTED) from error


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
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> None:
    """Take the flags in front of a command."""


def _placeholder() -> None:
    """Stand for a command that is not imported yet; never called."""


for _name, (_target, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_placeholder)


def load_command(name: str) -> Any:
    """Import the module of a command and return the command."""
    target, _ = COMMANDS[name]
    module, _, attribute = target.partition(":")
    value = getattr(import_module(module), attribute)
    if not isinstance(value, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name, epilog=EPILOG, context_settings=HELP_FLAGS)(value)
        value = single
    return typer.main.get_command(value)
