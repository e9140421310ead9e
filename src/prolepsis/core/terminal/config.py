"""Settings from flag > environment (PROLEPSIS_<FIELD>) > file > default; unknown keys are refused."""

import difflib
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from prolepsis.core.config import EngineConfig, ServerConfig, SettingTerms
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import read_text
from prolepsis.core.validation import first_problem, shown_path, suggestion
from prolepsis.core.yaml_document import read_yaml

DEFAULT_FILE = "prolepsis.yaml"
ENVIRONMENT_PREFIX = "PROLEPSIS_"
NOT_FIELDS = tuple(f"{ENVIRONMENT_PREFIX}{name}" for name in ("API_KEY", "CACHE", "CONFIG", "DATA", "URL", "TEST_"))
"""Beginnings of the environment variables of this prefix that name no field."""

Section = TypeVar("Section", bound=BaseModel)


SECTIONS: tuple[type[BaseModel], ...] = (EngineConfig, ServerConfig)
"""A configuration file holds the fields of all of them, flat."""


@dataclass(frozen=True, slots=True)
class Given:
    """The value given for a field, and its origin."""

    value: object
    origin: str  # as in error messages: '--port', 'PROLEPSIS_PORT', 'port in prolepsis.yaml'


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration in effect and the origin of every value that is not a default."""

    engine: EngineConfig
    server: ServerConfig
    origins: Mapping[str, str]

    def sections(self) -> tuple[BaseModel, ...]:
        return (self.engine, self.server)


def load_settings(
    flags: Mapping[str, object], environment: Mapping[str, str], file: Path | None = None, directory: Path = Path()
) -> Settings:
    """Merge the sources; `file` None means ./prolepsis.yaml of `directory`, if it exists.

    Raises `ConfigError` that names the origin, the value given and what is allowed.
    """
    if file is None and (directory / DEFAULT_FILE).is_file():
        file = directory / DEFAULT_FILE
    given = dict(_from_file(file)) if file is not None else {}
    given |= dict(_from_environment(environment))
    given |= {name: Given(value, flag_name(name)) for name, value in flags.items() if value is not None}
    return Settings(
        engine=_section(EngineConfig, given),
        server=_section(ServerConfig, given),
        origins={name: value.origin for name, value in given.items()},
    )


def field_names() -> list[str]:
    """Names of every field a file or the environment may set."""
    return [name for section in SECTIONS for name in section.model_fields]


def flag_name(field: str) -> str:
    return "--" + field.replace("_", "-")


def environment_name(field: str) -> str:
    return ENVIRONMENT_PREFIX + field.upper()


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (variable, the name it nearly has) for variables of our prefix that set nothing.

    They cause warnings only: an orchestrator may define variables of this prefix for other purposes.
    """
    known = [environment_name(name) for name in field_names()]
    for variable in sorted(environment):
        if variable in known or not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(NOT_FIELDS):
            continue
        for near in difflib.get_close_matches(variable, known, n=1, cutoff=0.85):
            yield variable, near


def _from_file(file: Path) -> Iterator[tuple[str, Given]]:
    for key, value in _mapping(file).items():
        if key not in field_names():
            near = suggestion(str(key), field_names())
            raise ConfigError(f"{file} sets {key!r}, which is unknown; {near}", param=str(key))
        yield key, Given(value, f"{key} in {file}")


def _mapping(file: Path) -> dict[str, object]:
    try:
        value = read_yaml(read_text(file, "configuration file")).value
    except ValueError as error:
        raise ConfigError(f"configuration file {file} is not YAML: {error}") from error
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"configuration file {file} holds a {type(value).__name__}; allowed: a mapping of settings")
    return value


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, Given]]:
    for name in field_names():
        if text := environment.get(environment_name(name)):
            yield name, Given(text, environment_name(name))


def _section(section: type[Section], given: Mapping[str, Given]) -> Section:
    values = {
        name: _plain(field.annotation, given[name].value)
        for name, field in section.model_fields.items()
        if name in given
    }
    try:
        return section.model_validate(values)
    except ValidationError as error:
        problem = first_problem(error, section, values)
        name = str(problem.path[0])
        term = shown_path(problem.path[1:])
        place = f"{given[name].origin}{term if term.startswith('[') or not term else f', {term}'}"
        raise ConfigError(f"{place} {problem.message}", param=name) from error


def _plain(annotation: Any, value: object) -> object:
    """Return `value` in the form that the field's type expects."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal and isinstance(value, bool):  # true and false stand for on and off
        return "on" if value else "off"
    if not isinstance(value, str):
        return value
    text = value.strip()
    if origin in (Union, types.UnionType) and type(None) in arguments:
        inner = next(argument for argument in arguments if argument is not type(None))
        return None if text == "none" else _plain(inner, text)
    if origin is tuple:
        return () if text == "none" else tuple(listed(text))
    if origin is dict or is_terms(annotation):
        return dict(part.partition("=")[::2] for part in listed(text))
    return text


def is_terms(annotation: Any) -> bool:
    """Return whether a setting is a block of terms."""
    return isinstance(annotation, type) and issubclass(annotation, SettingTerms)


def listed(text: str) -> list[str]:
    """Return the parts of a comma-separated flag or variable."""
    return [part.strip() for part in text.split(",") if part.strip()]
