"""Flags that operators set while serving: for all replicas through the store, without one for this machine's servers.

They are evaluated like those of a flag file, next to the configured provider. Of the flags that turn speculation off
the side that says stop wins; of others the one that an operator set.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import structlog
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode, OpenFeatureError
from openfeature.flag_evaluation import Reason
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.facts import FlagDecision, RequestFacts
from prolepsis.safety.flag_file import DEFAULTS, ENABLED, KILL, FlagSet, parse_flags
from prolepsis.safety.flags import evaluation_context
from prolepsis.safety.shared_controls import SharedControls, Values

KIND = "flag"
"""Kind of these controls in the store."""
MAX_FLAGS = 64
MAX_DEFINITION = 16_384
"""Characters of JSON."""
STOP: Mapping[str, bool] = {ENABLED: False, KILL: True}
"""The values that turn speculation off."""

log = structlog.get_logger(__name__)


class SetFlag(BaseModel):
    """A flag that an operator set: its definition, who, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    flag: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    definition: dict[str, object]
    """As flagd has it in a file."""
    by: str = ""
    reason: str = ""
    at: AwareDatetime


@dataclass(frozen=True, slots=True)
class _Usable:
    entry: SetFlag
    flags: FlagSet = field(compare=False)
    """Made of the entry."""


class SharedFlags:
    """Belongs to one event loop. Values of the store that this version cannot evaluate count as stop."""

    def __init__(self, controls: SharedControls) -> None:
        self._controls = controls
        self._flags: dict[str, _Usable | None] = {}
        """By key; None: it cannot be evaluated."""
        controls.follow(KIND, self._follow)

    @property
    def unknown(self) -> bool:
        """The copy is damaged and the store has not been read: any flag may be set."""
        return self._controls.unknown

    @property
    def all(self) -> list[SetFlag]:
        """The flags that are set, by name."""
        return [one.entry for _, one in sorted(self._flags.items()) if one is not None]

    def entry(self, key: str) -> SetFlag | None:
        found = self._flags.get(key)
        return None if found is None else found.entry

    def set(self, entry: SetFlag) -> str:
        """Set a flag here at once and for others soon; returns why it would be lost with the server, else "".

        Raises `ConfigError` for a definition that cannot be evaluated, `InvalidParameter` where too many are set.
        """
        _checked(entry)
        others = self._controls.of(KIND).keys() - {entry.flag}
        if len(others) >= MAX_FLAGS:
            raise InvalidParameter(f"{MAX_FLAGS} flags are set already; allowed: to remove one", param="flag")
        return self._controls.set(KIND, entry.flag, entry.model_dump_json())

    def remove(self, key: str) -> str:
        """Leave a flag to the provider again; returns as `set` does."""
        return self._controls.set(KIND, key, None)

    def decide(self, key: str, facts: RequestFacts | None = None) -> FlagDecision | None:
        """Return the value of a flag, for a request or for all, None if it is not set."""
        if key not in self._flags:
            stop = self.unknown and key in STOP
            return _stopped(key, ErrorCode.PROVIDER_NOT_READY) if stop else None
        found = self._flags[key]
        if found is None:
            return _stopped(key, ErrorCode.PARSE_ERROR)
        context = EvaluationContext() if facts is None else evaluation_context(facts)
        default = DEFAULTS.get(key, False)
        try:
            details = found.flags.core.resolve_boolean_value(key, default, context)
        except OpenFeatureError as error:
            return FlagDecision(key, default, None, Reason.ERROR, found.flags.version, str(error.error_code))
        reason = str(details.reason or Reason.UNKNOWN)
        return FlagDecision(key, details.value, details.variant, reason, found.flags.version)

    def _follow(self, values: Values) -> None:
        before, self._flags = self._flags, {key: _usable(key, text) for key, text in values.items()}
        for key in sorted(before.keys() | self._flags.keys()):
            was, now = before.get(key), self._flags.get(key)
            if (key in before, was) != (key in self._flags, now):
                by = now.entry.by if now is not None else ""
                log.info("flag_set" if key in self._flags else "flag_removed", flag=key, by=by)


def stricter(key: str, provided: FlagDecision | None, shared: FlagDecision | None) -> FlagDecision | None:
    """Return which of two decisions counts: the one that says stop, else the one that an operator set."""
    if provided is None or shared is None:
        return shared or provided
    stop = STOP.get(key)
    return provided if stop is not None and provided.value == stop != shared.value else shared


def plain_definition(*, value: bool) -> dict[str, object]:
    """Return the definition of a flag that is the same for every request."""
    variants = {"on": True, "off": False}
    return {"state": "ENABLED", "variants": variants, "defaultVariant": "on" if value else "off"}


def made_entry(flag: str, definition: Mapping[str, object], by: str, reason: str, at: datetime) -> SetFlag:
    """Return an entry; raises `InvalidParameter` for a name that is not valid for a flag."""
    try:
        return SetFlag(flag=flag, definition=dict(definition), by=by, reason=reason, at=at)
    except ValidationError:
        message = f"flag is {flag[:80]!r}; allowed: 1 to 64 letters, digits, dots, hyphens and underscores"
        raise InvalidParameter(message, param="flag") from None


def _checked(entry: SetFlag) -> FlagSet:
    text = json.dumps({"flags": {entry.flag: entry.definition}})
    if len(text) > MAX_DEFINITION:
        message = f"the definition has {len(text)} characters; allowed: {MAX_DEFINITION}"
        raise ConfigError(message, param="definition")
    return parse_flags(text, f"set by {entry.by or 'an operator'}")


def _usable(key: str, text: str) -> _Usable | None:
    try:
        entry = SetFlag.model_validate_json(text)
        return _Usable(entry, _checked(entry))
    except (ValidationError, ConfigError) as error:
        log.error("shared_flag_unusable", flag=key, error=type(error).__name__)
        return None


def _stopped(key: str, error: ErrorCode) -> FlagDecision | None:
    """Return that a flag says stop as nothing else is known; None for a flag that stops nothing."""
    return FlagDecision(key, STOP[key], None, Reason.ERROR, error=str(error)) if key in STOP else None
