"""The `prolepsis` command: a table of commands, each imported only when it runs, and the one place that ends errors."""

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from prolepsis import __version__
from prolepsis.cli.output import EPILOG, HELP_FLAGS, INTERRUPTED, exit_status, print_error
from prolepsis.core.errors import ProlepsisError

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("prolepsis.cli.serve:serve", "Serve a model over HTTP, in OpenAI's shape."),
    "generate": ("prolepsis.cli.generate:generate", "Print the continuation of a prompt as it comes."),
    "bench": ("prolepsis.cli.bench.command:bench", "Measure ways of decoding side by side."),
    "exact": ("prolepsis.cli.exact:exact", "Prove on your own prompts that speculation changes nothing."),
    "profile": ("prolepsis.cli.profile:profile", "Measure and store what a pass costs here; show the self-check."),
    "keys": ("prolepsis.cli.keys:app", "Create, list and revoke API keys."),
    "kill": ("prolepsis.cli.kill:app", "Stop all speculation of the servers here or at a URL, and let it go on."),
    "breaker": ("prolepsis.cli.breaker:app", "See and set the breakers of a running server."),
    "plan": ("prolepsis.cli.policy:app", "Check, compare, explain, apply and take back policies."),
    "rollout": ("prolepsis.cli.rollout:app", "See and steer the rollouts of a running server."),
    "correctness": ("prolepsis.cli.correctness:correctness", "Show what a server found decoding requests again."),
    "cost": ("prolepsis.cli.cost:app", "See what requests cost and what speculation saves."),
    "contract": ("prolepsis.cli.contract:contract", "Show what of the accepted tokens reached clients."),
    "shadow": ("prolepsis.cli.shadow:shadow", "Show what speculation would bring, from requests in shadow."),
    "drift": ("prolepsis.cli.drift:app", "See how proposers fare against how they fared."),
    "audit": ("prolepsis.cli.audit:app", "Verify, show, export and replay the audit log."),
    "store": ("prolepsis.cli.store:app", "Look after the store of records, plans and the audit log."),
    "train": ("prolepsis.cli.train:app", "Train draft heads and draft models from the target's own text."),
    "models": ("prolepsis.cli.models:app", "Fetch, list and show models."),
}
"""Name -> (module:function or Typer application, one line of help)."""


class Commands(TyperGroup):
    """Imports a command when it is to run, and turns every `ProlepsisError` into one line and an exit status."""

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
    """Take the flags that stand before a command."""


def _stand_in() -> None:
    """Stand in the table of commands for one that is not imported yet; never called."""


for _name, (_target, _help) in COMMANDS.items():
    app.command(_name, help=_help)(_stand_in)


def load_command(name: str) -> Any:
    """Import the module of a command and return it as the command-line parser wants it."""
    target, _ = COMMANDS[name]
    module, _, attribute = target.partition(":")
    value = getattr(import_module(module), attribute)
    if not isinstance(value, typer.Typer):
        single = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        single.command(name, epilog=EPILOG, context_settings=HELP_FLAGS)(value)
        value = single
    return typer.main.get_command(value)
