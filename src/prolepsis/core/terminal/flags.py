"""Command-line flags, generated from the fields of configuration sections."""

import inspect
import os
import types
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from prolepsis.core.config import COMMON, SettingTerms
from prolepsis.core.terminal.config import Settings, environment_name, flag_name, is_terms, load_settings
from prolepsis.core.terminal.output import show_settings

Command = Callable[..., None]
Kind = TypeVar("Kind")

_CONFIG = typer.Option(
    "--config",
    envvar="PROLEPSIS_CONFIG",
    show_envvar=True,
    metavar="FILE",
    help="configuration file; default: ./prolepsis.yaml, if it exists",
    rich_help_panel="Configuration",
)
_ALSO = {"served_model_names": ("--served-model-name",)}
"""Further flags of a setting, by which other servers know it."""
_PRINT_CONFIG = typer.Option(
    "--print-config",
    help="print the configuration in effect with the origin of each value, and exit",
    rich_help_panel="Configuration",
)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        for param in context.command.params:
            param.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit


def configured(*sections: type[BaseModel]) -> Callable[[Command], Command]:
    """Give a command one flag for each field of `sections`; its first parameter receives the merged `Settings`."""
    fields = {name: field for section in sections for name, field in section.model_fields.items()}
    panels = {name: _panel(section) for section in sections for name in section.model_fields}

    def decorate(command: Command) -> Command:
        own = list(inspect.signature(command).parameters.values())[1:]

        def run(**arguments: Any) -> None:
            flags = {name: arguments.pop(name) for name in fields}
            del arguments["help_all"]
            settings = load_settings(flags, os.environ, arguments.pop("config"))
            if arguments.pop("print_config"):
                show_settings(settings)
                raise typer.Exit()
            command(settings, **arguments)

        take_signature(run, command, [*own, *_flag_parameters(fields, panels)])
        return run

    return decorate


def with_settings(*defaults: object) -> Callable[[Command], Command]:
    """Give a command the options of settings dataclasses; its parameters of these types receive the settings.

    Fields are options if they are annotated with `typer.Option`, also the fields of a dataclass in a field.
    """
    kinds = [type(settings) for settings in defaults]

    def decorate(command: Command) -> Command:
        own = [each for each in inspect.signature(command).parameters.values() if each.annotation not in kinds]
        options = [option for settings in defaults for option in options_of(settings).values()]
        for option in options:
            shown = get_args(option.annotation)[1]
            shown.rich_help_panel = shown.rich_help_panel or "Recipe"

        def run(*given: object, **arguments: Any) -> None:
            values = {option.name: arguments.pop(option.name) for option in options}
            command(*given, *(with_options(settings, values) for settings in defaults), **arguments)

        take_signature(run, command, [*own, *options])
        return run

    return decorate


def options_of(settings: object) -> dict[str, inspect.Parameter]:
    """Return the options of a settings dataclass by the names of their fields, with the values as defaults."""
    options: dict[str, inspect.Parameter] = {}
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        value = getattr(settings, name)
        if get_origin(hint) is Annotated:
            options[name] = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=hint)
        elif is_dataclass(value):
            options |= options_of(value)
    return options


def with_options(settings: Kind, values: Mapping[str, object]) -> Kind:
    changes: dict[str, Any] = {}
    for name, hint in get_type_hints(type(settings), include_extras=True).items():
        if get_origin(hint) is Annotated:
            changes[name] = values[name]
        elif is_dataclass(value := getattr(settings, name)):
            changes[name] = with_options(value, values)
    return replace(settings, **changes)  # type: ignore[type-var]


def settings_here(**flags: object) -> Settings:
    """Return the settings of a command with few flags: from `flags`, environment, ./prolepsis.yaml and defaults."""
    config = os.environ.get("PROLEPSIS_CONFIG")
    return load_settings(flags, os.environ, Path(config) if config else None)


def _flag_parameters(fields: dict[str, FieldInfo], panels: dict[str, str]) -> list[inspect.Parameter]:
    keyword = inspect.Parameter.KEYWORD_ONLY
    config = inspect.Parameter("config", keyword, default=None, annotation=Annotated[Path | None, _CONFIG])
    show = inspect.Parameter("print_config", keyword, default=False, annotation=Annotated[bool, _PRINT_CONFIG])
    flags = [
        inspect.Parameter(name, keyword, default=None, annotation=_annotation(name, field, panels[name]))
        for name, field in fields.items()
    ]
    text = f"show {sum(COMMON not in field.metadata for field in fields.values())} more options"
    more = typer.Option("--help-all", is_eager=True, callback=_show_all, help=text, rich_help_panel="Configuration")
    show_all = inspect.Parameter("help_all", keyword, default=False, annotation=Annotated[bool, more])
    return [*flags, config, show, show_all]


def _annotation(name: str, field: FieldInfo, panel: str) -> Any:
    flag = flag_name(name)
    shown: dict[str, Any] = {"help": f"{field.description}{_default(field)}", "show_default": False}
    shown |= {"hidden": COMMON not in field.metadata, "rich_help_panel": panel}
    if field.annotation is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/{flag.replace('--', '--no-', 1)}", **shown)]
    return Annotated[str | None, typer.Option(flag, *_ALSO.get(name, ()), metavar=_metavar(field.annotation), **shown)]


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", (), {}) or isinstance(value, SettingTerms):
        return ""
    if isinstance(value, bool):
        return f" [default: {'on' if value else 'off'}]"
    return f" [default: {','.join(map(str, value)) if isinstance(value, tuple) else value}]"


def _metavar(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _metavar(next(a for a in arguments if a is not type(None)))
    if origin is Literal:
        return "|".join(arguments)
    if origin is tuple:
        return "NUMBER,..." if float in (arguments[0], *get_args(arguments[0])) else "NAME,..."
    if origin is dict or is_terms(annotation):
        return "NAME=VALUE,..."
    return {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


def _panel(section: type[BaseModel]) -> str:
    name = section.__name__.removesuffix("Config")
    example = environment_name(next(iter(section.model_fields)))
    return f"{name}: as flag, as variable such as {example}, or as key of the file"


def take_signature(run: Command, command: Command, parameters: list[inspect.Parameter]) -> None:
    # functools.wraps would also copy the annotations of the settings parameter, which is not a flag
    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters}
