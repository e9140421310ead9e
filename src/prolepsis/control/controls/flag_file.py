"""Flags in flagd's format: checked before use, and evaluated in this process by flagd's rules."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from hashlib import sha256
from math import isinf
from typing import Annotated, Any, Literal

from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode, OpenFeatureError
from openfeature.flag_evaluation import FlagResolutionDetails, Reason
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.extras import FLAGS
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.core.files import LastGood
from prolepsis.core.validation import first_problem
from prolepsis.core.yaml_document import read_yaml

ENABLED = "speculation.enabled"  # boolean; false: the request is decoded plainly, regardless of policy and caller
KILL = "speculation.kill"  # boolean, evaluated without a request; true: no speculation anywhere
DEFAULTS: Mapping[str, bool] = {ENABLED: True, KILL: False}  # the value of a flag that is missing or fails

_LAZY = ("if", "?:", "and", "or", "filter", "map", "reduce", "all", "some", "none")
_KINDS: Mapping[type, str] = {
    **{bool: "boolean", str: "string", int: "number", float: "number"},
    **{dict: "object", list: "object"},
}


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
    resolve: Callable[[str, bool, EvaluationContext], FlagResolutionDetails[bool]]
    keys: frozenset[str]
    version: str  # `metadata.version` if the file has one, and a digest of the content
    content: Mapping[str, object]  # the file as plain values

    def decide(self, key: str, facts: RequestFacts | None = None) -> FlagDecision:
        """Return the value of a boolean flag, for a request or for all; where it is missing or fails, its default."""
        default = DEFAULTS.get(key, False)
        try:
            details = self.resolve(key, default, evaluation_context(facts))
        except OpenFeatureError as error:
            return FlagDecision(key, default, None, Reason.ERROR, self.version, str(error.error_code))
        except Exception:  # contained: a flag decides how a request is served, never whether
            return FlagDecision(key, default, None, Reason.ERROR, self.version, ErrorCode.GENERAL)
        return FlagDecision(key, details.value, details.variant, str(details.reason or Reason.UNKNOWN), self.version)


_NAMES = tuple(field.name for field in fields(RequestFacts) if field.name not in ("targeting_key", "flag"))


def evaluation_context(facts: RequestFacts | None) -> EvaluationContext:
    """Return the facts by name, without those that are unknown or unlimited; none: those of no request.

    `targetingKey` is the key by which shares of requests are drawn, `time` an ISO text, `roles` a list.
    """
    if facts is None:
        return EvaluationContext()
    shown = {name: _plain(getattr(facts, name)) for name in _NAMES}
    return EvaluationContext(facts.targeting_key, {name: value for name, value in shown.items() if value is not None})


def _plain(fact: object) -> bool | int | float | str | list[str] | dict[str, str] | None:
    if isinstance(fact, datetime):
        return fact.isoformat()
    if isinstance(fact, frozenset):
        return sorted(fact)
    if isinstance(fact, float) and isinf(fact):
        return None
    if isinstance(fact, bool | int | float | str | None):
        return fact
    assert isinstance(fact, dict), "facts are plain values"
    return dict(fact)


def parse_flags(text: str, name: str) -> FlagSet:
    """Return the flags that `text`, JSON or YAML, holds; `name` names it in errors.

    Raises `ConfigError` that names the flag, the given value and the allowed ones, or the extra to install.
    """
    FLAGS.require(f"the evaluation of flags {name}", "flags")
    from openfeature.contrib.tools.flagd.core import FlagdCore

    try:
        document = read_yaml(text).value
    except ValueError as error:
        raise ConfigError(f"flags {name} is neither JSON nor YAML: {error}", param="flags") from None
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        problem = first_problem(error, _File, document)
        raise ConfigError(f"flags {name}: {problem.where or 'the file'} {problem.message}", param="flags") from None
    faults = [f"$evaluators.{key}: {fault}" for key, rule in file.evaluators.items() for fault in _operators(rule)]
    faults += [f"flags.{key}: {fault}" for key, flag in file.flags.items() for fault in _flag_faults(key, flag)]
    if faults:
        raise ConfigError(f"flags {name}: {faults[0]}", param="flags")
    assert isinstance(document, dict), "it has the shape of a file"
    digest = sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:12]
    core = FlagdCore()
    try:
        core.set_flags(document)
    except OpenFeatureError as error:
        raise ConfigError(f"flags {name}: {error.error_message}", param="flags") from None
    version = digest if (given := file.metadata.get("version")) is None else f"{given}@{digest}"
    return FlagSet(core.resolve_boolean_value, frozenset(file.flags), version, document)


def _flag_faults(key: str, flag: _Flag) -> Iterator[str]:
    default = flag.defaultVariant
    default = str(default).lower() if isinstance(default, bool) else default
    if default and default not in flag.variants:
        yield f"defaultVariant is {default!r}; allowed: {', '.join(flag.variants)}"
    kinds = {
        "boolean" if isinstance(value, bool) else _KINDS.get(type(value), "null") for value in flag.variants.values()
    }
    if len(kinds) > 1:
        yield f"variants are {', '.join(sorted(kinds))}; allowed: values of one type"
    if key in DEFAULTS and kinds != {"boolean"}:
        yield f"variants are {', '.join(sorted(kinds))}; allowed for this flag: boolean"
    yield from (f"targeting {fault}" for fault in _operators(flag.targeting))


def _operators(rule: object) -> Iterator[str]:
    """Yield the faults of the operators in a JsonLogic rule; a mapping with one key is an operation."""
    from openfeature.contrib.tools.flagd.core.targeting.targeting import OPERATORS

    allowed = {*OPERATORS, *_LAZY} - {"log"}  # it would write facts of requests to standard output
    if isinstance(rule, list):
        for part in rule:
            yield from _operators(part)
    elif isinstance(rule, dict) and len(rule) == 1:
        [(operator, arguments)] = rule.items()
        if operator not in allowed and operator != "$ref":
            yield f"has the operator {operator!r}; allowed: {', '.join(sorted(allowed))}"
        yield from _operators(arguments)
    elif isinstance(rule, dict) and rule:
        yield f"has a mapping of {len(rule)} keys; allowed: one, the operator"


class FlagFile(LastGood[FlagSet]):
    what = "flags"

    def _parse(self, text: str) -> FlagSet:
        return parse_flags(text, str(self.path))

    def _version(self, flags: FlagSet) -> str:
        return flags.version
