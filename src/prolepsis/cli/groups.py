"""How groups of commands are set up, and the flags they share."""

from typing import Annotated

import typer

from prolepsis.cli.output import EPILOG

HELP_FLAGS = {"help_option_names": ["-h", "--help"]}
AsJson = Annotated[bool, typer.Option("--json", help="print JSON for programs")]


def command_group(help_text: str) -> typer.Typer:
    """Return an empty group of subcommands."""
    return typer.Typer(
        help=help_text,
        epilog=EPILOG,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings=HELP_FLAGS,
    )
