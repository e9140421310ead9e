"""`prolepsis flags`: the feature flags that operators set for all replicas of a running server."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.terminal.output import command_group
from prolepsis.core.terminal.resource import REASON, Act, Resource, add_commands, argument, parameter
from prolepsis.core.yaml_document import read_yaml

_VALUE = typer.Argument(metavar="on|off", help="for every request")
_DEFINITION = typer.Option(metavar="FILE", help="a flag as a flag file has it (JSON or YAML), with targeting")
_FLAG = argument("flag", "speculation.enabled, speculation.kill, or one that rules of the policy name")


def _flag_to_set(given: dict[str, Any], _: Callable[[str], Any]) -> dict[str, Any]:
    value, file = given.pop("value"), given.pop("definition")
    if (value is None) == (file is None) or value not in (None, "on", "off"):
        raise ConfigError("allowed: on, off, or --definition FILE", param="value")
    if file is None:
        return {**given, "value": value == "on"}
    try:
        return {**given, "definition": read_yaml(read_text(file, "definition")).value}
    except ValueError as error:
        raise ConfigError(f"definition {file} is neither JSON nor YAML: {error}", param="definition") from None


FLAGS = Resource(
    title="Flags that are set",
    path="/admin/flags",
    help="List the flags that operators set, without flags of file or provider.",
    columns={"flags": ("flag", "default=definition.defaultVariant", "definition", "by", "reason", "at")},
    hint="Flags that operators set apply to all replicas and come before those of the flag file or the provider. A flag"
    " that stops speculation always wins.",
    empty="No flag is set here. Those of the flag file or the provider apply.",
    acts={
        "flag": Act(
            method="PUT",
            path="/admin/flags",
            command="set",
            help="Set a flag. Where flag file or provider turn speculation off, it stays off.",
            parameters=(
                _FLAG,
                parameter("value", Annotated[str | None, _VALUE], None),
                parameter("definition", Annotated[Path | None, _DEFINITION], None),
                REASON,
            ),
            prepare=_flag_to_set,
            done="Flag {flag} is set.",
        ),
        "flag-remove": Act(
            method="DELETE",
            path="/admin/flags",
            command="remove",
            help="Leave a flag to its file or provider again.",
            parameters=(_FLAG, REASON),
            done="Flag {flag} is no longer set here.",
            button="Clear",
            row={"flag": "{flag}"},
        ),
    },
)
flags = add_commands(command_group("Show, set and remove feature flags of all replicas of a running server."), FLAGS)
