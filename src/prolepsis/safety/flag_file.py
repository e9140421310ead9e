"""Flag files in flagd's format: checked before use, and evaluated in this process by a provider for OpenFeature."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from openfeature.contrib.tools.flagd.core import FlagdCore
from openfeature.contrib.tools.flagd.core.targeting.targeting import OPERATORS
from openfeature.evaluation_context import EvaluationContext
from openfeature.event import ProviderEventDetails
from openfeature.exception import OpenFeatureError
from openfeature.flag_evaluation import FlagResolutionDetails, FlagValueType
from openfeature.provider import AbstractProvider, Metadata
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import LastGood, Reload
from prolepsis.core.validation import first_problem
from prolepsis.core.yaml_document import read_yaml

ENABLED = "speculation.enabled"
"""Boolean; false: the request is decoded plainly, regardless of policy and caller."""
KILL = "speculation.kill"
"""Boolean, evaluated without a request; true: no speculation anywhere."""
DEFAULTS: Mapping[str, bool] = {ENABLED: True, KILL: False}
"""The value of a flag that is missing or fails."""

_LAZY = ("if", "?:", "and", "or", "filter", "map", "reduce", "all", "some", "none")
_ALLOWED = frozenset({*OPERATORS, *_LAZY} - {"log"})
"""Operators of targeting rules; `log` would write facts of requests to standard output."""
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
    """`metadata.version` if the file has one, and a digest of the content."""
    content: Mapping[str, object]
    """The file as plain values."""


def parse_flags(text: str, name: str) -> FlagSet:
    """Return the flags that `text`, JSON or YAML, holds; `name` names it in errors.

    Raises `ConfigError` that names the flag, the given value and the allowed ones.
    """
    try:
        document = read_yaml(text).value
    except ValueError as error:
        raise ConfigError(f"flags {name} is neither JSON nor YAML: {error}", param="flags") from None
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, _File, document)
        raise ConfigError(f"flags {name}: {problem.where or 'the file'} {problem.message}", param="flags") from None
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
    version = file.metadata.get("version")
    return FlagSet(core, frozenset(file.flags), digest if version is None else f"{version}@{digest}", document)


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
    """Yield the faults of the operators in a JsonLogic rule; a mapping with one key is an operation."""
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


VERSION = "version"
"""Key of the set's version in the metadata of every evaluation."""
_T = TypeVar("_T")
Structure = Sequence[FlagValueType] | Mapping[str, FlagValueType]


class FlagFile(LastGood[FlagSet]):
    """Holds the last good set of flags of a file."""

    what = "flags"

    def _parse(self, text: str) -> FlagSet:
        return parse_flags(text, str(self.path))

    def _version(self, flags: FlagSet) -> str:
        return flags.version


class FlagFileProvider(AbstractProvider):
    """Evaluates a file's flags by flagd's rules; raises OpenFeature's errors, as providers do."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` if the file has no usable flags."""
        super().__init__()
        self.file = FlagFile(path)

    def poll(self) -> Reload:
        """Take over the file if it changed, and notify the provider's listeners."""
        reload = self.file.poll()
        if reload.changed:
            self.emit_provider_configuration_changed(ProviderEventDetails(sorted(self.file.value.keys)))
        return reload

    def get_metadata(self) -> Metadata:
        return Metadata("prolepsis-flag-file")

    def resolve_boolean_details(
        self, flag_key: str, default_value: bool, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[bool]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_boolean_value(flag_key, default_value, evaluation_context))

    def resolve_string_details(
        self, flag_key: str, default_value: str, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[str]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_string_value(flag_key, default_value, evaluation_context))

    def resolve_integer_details(
        self, flag_key: str, default_value: int, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[int]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_integer_value(flag_key, default_value, evaluation_context))

    def resolve_float_details(
        self, flag_key: str, default_value: float, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[float]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_float_value(flag_key, default_value, evaluation_context))

    def resolve_object_details(
        self, flag_key: str, default_value: Structure, evaluation_context: EvaluationContext | None = None
    ) -> FlagResolutionDetails[Structure]:
        flags = self.file.value
        return _of(flags, flags.core.resolve_object_value(flag_key, default_value, evaluation_context))


def _of(flags: FlagSet, details: FlagResolutionDetails[_T]) -> FlagResolutionDetails[_T]:
    return replace(details, flag_metadata={**details.flag_metadata, VERSION: flags.version})
