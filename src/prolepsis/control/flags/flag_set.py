"""flagd's file format: what is wrong with a set of flags is found before it is used."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, Literal

from openfeature.contrib.tools.flagd.core import FlagdCore
from openfeature.contrib.tools.flagd.core.targeting.targeting import OPERATORS
from openfeature.exception import OpenFeatureError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.control.flags.known import DEFAULTS
from prolepsis.control.yaml_text import read_yaml
from prolepsis.core.errors import ConfigError

_LAZY = ("if", "?:", "and", "or", "filter", "map", "reduce", "all", "some", "none")
_ALLOWED = frozenset({*OPERATORS, *_LAZY} - {"log"})
"""Operators of targeting rules; `log` would write what requests say to standard output."""
_DIGEST_LENGTH = 12


class _Flag(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    state: Literal["ENABLED", "DISABLED"]
    variants: Annotated[dict[str, Any], Field(min_length=1)]
    defaultVariant: str | bool | None = None  # noqa: N815  # the format's own spelling
    targeting: dict[str, Any] | None = None
    metadata: dict[str, bool | int | float | str] = Field(default_factory=dict)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    schema_: str = Field(default="", alias="$schema")
    evaluators: dict[str, Any] = Field(default_factory=dict, alias="$evaluators")
    flags: dict[str, _Flag]
    metadata: dict[str, bool | int | float | str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FlagSet:
    """Flags that can be evaluated."""

    core: FlagdCore
    keys: frozenset[str]
    version: str
    """`metadata.version` where the file has one, and a digest of its content."""


def parse_flags(text: str, name: str) -> FlagSet:
    """Return the flags that `text`, JSON or YAML, holds; `name` is what errors call it.

    Raises `ConfigError` that names the flag, what was given and what is allowed.
    """
    try:
        document = read_yaml(text).value
    except ValueError as error:
        raise ConfigError(f"flags {name} is neither JSON nor YAML: {error}", param="flags") from None
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(
            f"flags {name}: {where}: {first['msg'][0].lower()}{first['msg'][1:]}", param="flags"
        ) from None
    wrong = next(_faults(file), None)
    if wrong is not None:
        raise ConfigError(f"flags {name}: {wrong}", param="flags")
    assert isinstance(document, dict), "it has the shape of a file"
    digest = sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:_DIGEST_LENGTH]
    core = FlagdCore()
    try:
        core.set_flags(document)
    except OpenFeatureError as error:
        raise ConfigError(f"flags {name}: {error.error_message}", param="flags") from None
    said = file.metadata.get("version")
    return FlagSet(core, frozenset(file.flags), digest if said is None else f"{said}@{digest}")


def _faults(file: _File) -> Iterator[str]:
    yield from (f"$evaluators.{name}: {fault}" for name, rule in file.evaluators.items() for fault in _operators(rule))
    for key, flag in file.flags.items():
        for fault in _flag_faults(key, flag):
            yield f"flags.{key}: {fault}"


def _flag_faults(key: str, flag: _Flag) -> Iterator[str]:
    default = flag.defaultVariant
    default = str(default).lower() if isinstance(default, bool) else default
    if default and default not in flag.variants:
        yield f"defaultVariant is {default!r}; allowed: {', '.join(flag.variants)}"
    kinds = {_kind(value) for value in flag.variants.values()}
    if len(kinds) > 1:
        yield f"variants are {', '.join(sorted(kinds))}; allowed: values of one type"
    if key in DEFAULTS and kinds != {"boolean"}:
        yield f"variants are {', '.join(sorted(kinds))}; allowed for this flag: boolean"
    yield from (f"targeting {fault}" for fault in _operators(flag.targeting))


def _kind(value: object) -> str:
    if isinstance(value, bool):
        return "boolean"
    kinds: Mapping[type, str] = {str: "string", int: "number", float: "number", dict: "object", list: "object"}
    return kinds.get(type(value), "null")


def _operators(rule: object) -> Iterator[str]:
    """Yield what is wrong with the operators of a JsonLogic rule; a mapping of one key is an operation."""
    if isinstance(rule, list):
        for part in rule:
            yield from _operators(part)
    elif isinstance(rule, dict) and len(rule) == 1:
        [(operator, arguments)] = rule.items()
        if operator not in _ALLOWED and operator != "$ref":
            yield f"has the operator {operator!r}; allowed: {', '.join(sorted(_ALLOWED))}"
        yield from _operators(arguments)
    elif isinstance(rule, dict) and rule:
        yield f"has a mapping of {len(rule)} keys; allowed: one, the operator"
