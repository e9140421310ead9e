"""Flags that operators set while serving: for all replicas through the store, without one for this machine's servers.

They are evaluated like those of a flag file, next to the configured provider. Of the flags that turn speculation off
the side that says stop wins; of others the one that an operator set.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import structlog
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason

from prolepsis.control.controls.controls import Controls, Origin
from prolepsis.control.controls.flag_file import ENABLED, KILL, FlagSet, parse_flags
from prolepsis.control.store.controls import Control
from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.core.facts import FlagDecision, RequestFacts

KIND = "flag"  # kind of these controls in the store
MAX_FLAGS = 64
MAX_DEFINITION = 16_384  # characters of JSON
STOP: Mapping[str, bool] = {ENABLED: False, KILL: True}  # the values that turn speculation off
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class SetFlag:
    """A flag that an operator set: its definition, who, when and why."""

    flag: str
    definition: dict[str, object]  # as flagd has it in a file
    by: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class _Usable:
    entry: SetFlag
    flags: FlagSet = field(compare=False)  # made of the entry


class OperatorFlags:
    """Belongs to one event loop. Definitions that this version cannot evaluate count as stop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._flags: dict[str, _Usable | None] = {}  # by key; None: it cannot be evaluated
        controls.follow(KIND, self._follow)

    @property
    def all(self) -> list[SetFlag]:
        return [usable.entry for _, usable in sorted(self._flags.items()) if usable is not None]

    def entry(self, key: str) -> SetFlag | None:
        held = self._flags.get(key)
        return None if held is None else held.entry

    def set(self, key: str, definition: Mapping[str, object], *, by: str, reason: str) -> str:
        """Set a flag here at once and for others soon; returns why it would be lost with the server, else "".

        Raises `ConfigError` for a definition that cannot be evaluated, `InvalidParameter` for a name that is not valid,
        or where too many are set.
        """
        if not _NAME.fullmatch(key):
            message = f"flag is {key[:80]!r}; allowed: 1 to 64 letters, digits, dots, hyphens and underscores"
            raise InvalidParameter(message, param="flag")
        _checked(key, definition, by)
        if len(self._controls.of(KIND).keys() - {key}) >= MAX_FLAGS:
            raise InvalidParameter(f"{MAX_FLAGS} flags are set already; allowed: to remove one", param="flag")
        return self._controls.set(KIND, key, json.dumps(definition), by=by, reason=reason)

    def remove(self, key: str, *, by: str, reason: str) -> str:
        """Leave a flag to the provider again; returns as `set` does."""
        return self._controls.set(KIND, key, None, by=by, reason=reason)

    def decide(self, key: str, facts: RequestFacts | None = None) -> FlagDecision | None:
        """Return the value of a flag, for a request or for all, None if it is not set."""
        if key not in self._flags:
            return None
        held = self._flags[key]
        if held is None:
            stop = STOP.get(key)
            error = str(ErrorCode.PARSE_ERROR)
            return None if stop is None else FlagDecision(key, stop, None, Reason.ERROR, error=error)
        return held.flags.decide(key, facts)

    def _follow(self, origin: Origin) -> None:
        controls = self._controls.of(KIND)
        before, self._flags = self._flags, {key: _usable(key, control) for key, control in controls.items()}
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


def _checked(key: str, definition: Mapping[str, object], by: str) -> FlagSet:
    text = json.dumps({"flags": {key: definition}})
    if len(text) > MAX_DEFINITION:
        message = f"the definition has {len(text)} characters; allowed: {MAX_DEFINITION}"
        raise ConfigError(message, param="definition")
    return parse_flags(text, f"set by {by or 'an operator'}")


def _usable(key: str, control: Control) -> _Usable | None:
    try:
        definition = json.loads(control.value or "")
        entry = SetFlag(key, definition, control.by, control.reason, datetime.fromtimestamp(control.at, UTC))
        return _Usable(entry, _checked(key, definition, control.by))
    except (ValueError, OverflowError, OSError, ConfigError) as error:
        log.error("operator_flag_unusable", flag=key, error=type(error).__name__)
        return None
