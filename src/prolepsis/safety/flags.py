"""The flags that are asked, with what holds where a flag says nothing."""

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from hashlib import sha256
from importlib import import_module
from math import isinf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar
from uuid import uuid4

from openfeature import api
from openfeature.contrib.tools.flagd.core import FlagdCore
from openfeature.contrib.tools.flagd.core.targeting.targeting import OPERATORS
from openfeature.evaluation_context import EvaluationContext
from openfeature.event import ProviderEventDetails
from openfeature.exception import ErrorCode, OpenFeatureError
from openfeature.flag_evaluation import FlagEvaluationDetails, FlagResolutionDetails, FlagValueType, Reason
from openfeature.provider import AbstractProvider, FeatureProvider, Metadata
from openfeature.provider.no_op_provider import NoOpProvider
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.facts import RequestFacts
from prolepsis.core.files import LastGood, Reload
from prolepsis.core.yaml_document import read_yaml

ENABLED = "speculation.enabled"
"""Boolean; false: the request is decoded plainly, whatever policy and caller say."""
KILL = "speculation.kill"
"""Boolean, asked without a request; true: nothing is speculated anywhere."""
DEFAULTS: Mapping[str, bool] = {ENABLED: True, KILL: False}


_SHOWABLE = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class FlagDecision:
    """OpenFeature's evaluation details."""

    key: str
    value: bool
    variant: str | None
    reason: str
    """STATIC, TARGETING_MATCH, SPLIT, DEFAULT, DISABLED, CACHED, STALE, UNKNOWN or ERROR."""
    version: str = ""
    """Of the set of flags, where the provider says one."""
    error: str = ""
    """OpenFeature's code of what went wrong, such as FLAG_NOT_FOUND; the default holds then."""

    @property
    def shown(self) -> str:
        """Return KEY:VARIANT:REASON for a header; the value where it has no variant that a header can carry."""
        variant = self.variant if self.variant and _SHOWABLE.fullmatch(self.variant) else str(self.value).lower()
        return f"{self.key}:{variant}:{self.reason}"


_NAMES = tuple(field.name for field in fields(RequestFacts) if field.name not in ("targeting_key", "flag"))


def evaluation_context(facts: RequestFacts) -> EvaluationContext:
    """Return the facts by their names; what is not known, or not limited, is not there.

    `targetingKey` is what shares of requests are drawn by (`control.shares`), `time` an ISO text, `roles` a list.
    """
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


VERSION = "version"
"""Under which the set's version is in the metadata of every answer."""
_T = TypeVar("_T")
Structure = Sequence[FlagValueType] | Mapping[str, FlagValueType]


class FlagFile(LastGood[FlagSet]):
    """Holds the last good set of flags of a file."""

    def _read(self) -> str:
        try:
            return self.path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"flags {self.path} cannot be read: {error.strerror}", param="flags") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"flags {self.path} is not UTF-8: {error.reason}", param="flags") from None

    def _parse(self, text: str) -> FlagSet:
        return parse_flags(text, str(self.path))

    def _version(self, flags: FlagSet) -> str:
        return flags.version


class FlagFileProvider(AbstractProvider):
    """Evaluates a file's flags by flagd's own rules; raises OpenFeature's errors, as providers do."""

    def __init__(self, path: Path) -> None:
        """Raises `ConfigError` where the file holds no usable flags."""
        super().__init__()
        self.file = FlagFile(path)

    def look(self) -> Reload:
        """Take over the file if it changed; its listeners are told."""
        seen = self.file.look()
        if seen.changed:
            self.emit_provider_configuration_changed(ProviderEventDetails(sorted(self.file.value.keys)))
        return seen

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


PATIENCE_S = 0.1
"""How long a request waits for a provider."""


class Flags:
    """The flags of one server, under a domain of its own in OpenFeature's registry. Belongs to one event loop."""

    def __init__(self, provider: FeatureProvider, patience_s: float = PATIENCE_S) -> None:
        self._domain = f"prolepsis-{uuid4().hex}"
        self._patience_s = patience_s
        in_process = isinstance(provider, FlagFileProvider)
        (api.set_provider_and_wait if in_process else api.set_provider)(provider, self._domain)
        self._client = api.get_client(self._domain)

    async def enabled(self, facts: RequestFacts) -> FlagDecision:
        """Return whether the request may speculate."""
        return await self._ask(ENABLED, evaluation_context(facts))

    async def named(self, keys: Sequence[str], facts: RequestFacts) -> tuple[FlagDecision, ...]:
        """Return what these boolean flags say of the request, asked at once; false where one says nothing."""
        context = evaluation_context(facts)
        return tuple(await asyncio.gather(*(self._ask(key, context) for key in keys)))

    async def killed(self) -> FlagDecision:
        """Return whether nothing may."""
        return await self._ask(KILL, EvaluationContext())

    def close(self) -> None:
        """Let the provider go; its `shutdown` runs in a thread."""
        api.set_provider(NoOpProvider(), self._domain)

    async def _ask(self, key: str, context: EvaluationContext) -> FlagDecision:
        """Ask in a task of its own: the client of the SDK does not survive being cancelled."""
        default = DEFAULTS.get(key, False)
        asking = asyncio.ensure_future(self._client.get_boolean_details_async(key, default, context))
        asking.add_done_callback(_ignore)
        try:
            done, _ = await asyncio.wait((asking,), timeout=self._patience_s)
            if not done:
                return FlagDecision(key, default, None, Reason.ERROR, error="TIMEOUT")
            details = asking.result()
        except Exception:  # contained: a flag decides how a request is served, never whether
            return FlagDecision(key, default, None, Reason.ERROR, error=ErrorCode.GENERAL)
        finally:
            asking.cancel()
        version, error_code = details.flag_metadata.get(VERSION, ""), details.error_code
        reason = str(details.reason or Reason.UNKNOWN)
        return FlagDecision(key, details.value, details.variant, reason, str(version), str(error_code or ""))


def _ignore(asking: asyncio.Task[FlagEvaluationDetails[bool]]) -> None:
    """Take note of what came too late, so that asyncio does not complain of it."""
    if not asking.cancelled():
        asking.exception()


def provider_of(dotted: str) -> FeatureProvider:
    """Return the provider that `PACKAGE.MODULE:NAME` makes: NAME is called without arguments.

    Raises `ConfigError` where there is none, or it cannot be made.
    """
    module, _, name = dotted.partition(":")
    try:
        make: Callable[[], FeatureProvider] = getattr(import_module(module), name)
        return make()
    except Exception as error:  # contained: it is somebody else's code
        message = f"flag_provider {dotted!r} cannot be used: {error!r}; allowed: PACKAGE.MODULE:NAME of what makes one"
        raise ConfigError(message, param="flag_provider") from error
