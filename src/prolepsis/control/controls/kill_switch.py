"""The kill switch: no speculation in a scope while an operator or a flag stops it. Its state, without a server."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from prolepsis.control.store.controls import Control
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import FlagDecision
from prolepsis.core.json_value import computed
from prolepsis.core.kill_scope import EVERYTHING, SCOPE

KILL = "kill"  # kind of the kill switch's controls; their names are scopes
Source = Literal["operator", "store", "flag"]
MAX_REASON = 1024
Reason = Annotated[str, Field(max_length=MAX_REASON)]
MAX_SCOPES = 256  # scopes that are stopped one by one, besides everything
NOT_UNDERSTOOD = "a stop that this version does not understand"
_UNKNOWN = datetime.fromtimestamp(0, UTC)  # the time of a stop whose own time is not understood


class KilledScope(BaseModel):
    """A scope that an operator stopped or released: who, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Annotated[str, Field(pattern=SCOPE, max_length=300)]
    by: Annotated[str, Field(max_length=256)] = ""
    reason: Reason = ""
    at: AwareDatetime


class KillStatus(BaseModel):
    """The kill switch: a scope is stopped while the file, the store or the flag stops it."""

    model_config = ConfigDict(frozen=True)

    operator: Sequence[KilledScope] = ()  # stopped on this machine, by the controls file
    shared: Sequence[KilledScope] = ()  # stopped in the store, for all replicas
    flag: FlagDecision | None = None
    """The last successful evaluation of the flag; null if no flags are configured."""
    fault: str | None = None
    """Reason why the file cannot be used. The switch then stays as it was; if that is not known, it is on."""
    not_saved: str | None = None
    """Reason why an operator's act will be lost when the server ends; it tries again to save it."""
    released: KilledScope | None = None  # the last scope that an operator released, if it is not stopped again
    warnings: Mapping[str, str] = Field(default_factory=dict)
    """Stopped scopes that nothing on this server has now, each with a sentence that says what it has."""

    @computed
    def sources(self) -> tuple[Source, ...]:
        """What stops everything."""
        return self.stopped_by(EVERYTHING)

    @computed
    def on(self) -> bool:
        """Whether everything is stopped."""
        return bool(self.sources)

    @computed
    def killed(self) -> tuple[str, ...]:
        """All scopes that are stopped, by name."""
        stopped = {entry.scope for entry in (*self.operator, *self.shared)}
        return tuple(sorted(stopped | ({EVERYTHING} if self.on else set())))

    def stopped_by(self, scope: str) -> tuple[Source, ...]:
        """Return what stops a scope."""
        stops: dict[Source, bool] = {
            "operator": any(entry.scope == scope for entry in self.operator),
            "store": any(entry.scope == scope for entry in self.shared),
            "flag": scope == EVERYTHING and self.flag is not None and self.flag.value,
        }
        return tuple(source for source, on in stops.items() if on)

    def entry(self, scope: str) -> KilledScope | None:
        """Return who stopped a scope, in the store or on this machine; None where no operator stops it."""
        return next((entry for entry in (*self.shared, *self.operator) if entry.scope == scope), None)


def kill_status(local: Mapping[str, Control], shared: Mapping[str, Control]) -> KillStatus:
    """Return the state of the controls of this machine and of the store; both by scope."""
    operator, stored = list(_stopped(local)), list(_stopped(shared))
    killed = {entry.scope for entry in (*operator, *stored)}
    removed = [(control.at, name, control) for name, control in (*local.items(), *shared.items())]
    released = None
    for _, name, control in sorted(removed, key=lambda act: act[0]):
        if control.value is None and name not in killed:
            with suppress(ValidationError):
                released = _entry(name, control)
    return KillStatus(operator=operator, shared=stored, released=released)


def act(known: KillStatus, scope: str, *, on: bool, by: str, reason: str, at: datetime) -> Control:
    """Return the control that stops or releases a scope; one that is stopped already keeps its first reason.

    Raises `InvalidParameter` if too many scopes are stopped.
    """
    if not on:
        return Control(None, at.timestamp(), by, reason)
    others = {*known.killed} - {EVERYTHING, scope}
    if scope != EVERYTHING and len(others) >= MAX_SCOPES:
        raise InvalidParameter(f"{MAX_SCOPES} scopes are stopped already; allowed: {EVERYTHING}", param="scope")
    first = known.entry(scope)
    if first is None or not first.reason:
        first = KilledScope(scope=scope, by=by, reason=reason, at=at)
    return Control(first.at.isoformat(), at.timestamp(), first.by, first.reason)


def _stopped(controls: Mapping[str, Control]) -> Iterator[KilledScope]:
    """Yield what is stopped, in order of time; what is not understood stops everything."""
    entries = []
    for name, control in controls.items():
        if control.value is not None:
            try:
                entries.append(_entry(name, control))
            except ValidationError:
                entries.append(KilledScope(scope=EVERYTHING, reason=NOT_UNDERSTOOD, at=_moment(control.at) or _UNKNOWN))
    yield from sorted(entries, key=lambda entry: entry.at)


def _entry(name: str, control: Control) -> KilledScope:
    """Return the entry of a control, whose value is the time since which its scope is stopped.

    Raises `ValidationError` for one that is not understood.
    """
    at = _moment(control.at)
    with suppress(ValueError):
        at = datetime.fromisoformat(control.value or "")
    entry = {"scope": name, "by": control.by, "reason": control.reason[:MAX_REASON], "at": at}
    return KilledScope.model_validate(entry)


def _moment(at: float) -> datetime | None:
    """Return a time in seconds as a date; None where the calendar has none."""
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def shown_reason(text: str) -> str:
    """Return an operator's reason as it is kept and logged: redacted; the first call reads lists of names."""
    if not text:
        return ""
    from prolepsis.control.redaction.values import redacted_text  # takes time to import

    return redacted_text(text)[:MAX_REASON]
