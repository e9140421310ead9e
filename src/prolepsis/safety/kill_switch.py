"""The kill switch: no speculation in a scope while its file, an operator or a flag says so."""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, computed_field

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.facts import FlagDecision
from prolepsis.core.files import JsonFile, data_directory
from prolepsis.core.kill_scope import EVERYTHING, SCOPE

Source = Literal["operator", "store", "flag"]
By = Annotated[str, Field(max_length=256)]
MAX_REASON = 1024
Reason = Annotated[str, Field(max_length=MAX_REASON)]
Scope = Annotated[str, Field(pattern=SCOPE, max_length=300)]
MAX_SCOPES = 256
"""Scopes that are stopped one by one, besides everything."""


class KilledScope(BaseModel):
    """A scope that an operator stopped: who, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scope: Scope
    by: By = ""
    reason: Reason = ""
    at: AwareDatetime

    def after(self, first: "KilledScope | None") -> "KilledScope":
        """Return what is kept where the scope is stopped already: its first entry, if that has a reason."""
        return first if first is not None and first.reason else self


class KillState(BaseModel):
    """The operator's switch, with who set it, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: bool
    """Whether everything is stopped."""
    by: By = ""
    reason: Reason = ""
    at: AwareDatetime
    scopes: Annotated[tuple[KilledScope, ...], Field(max_length=MAX_SCOPES)] = ()
    """Other stopped scopes, in order of time."""
    released: KilledScope | None = None
    """The last scope that was released: by whom, when and why."""

    @property
    def everything(self) -> KilledScope | None:
        """The entry of everything, while it is stopped."""
        entry = KilledScope(scope=EVERYTHING, by=self.by, reason=self.reason, at=self.at)
        return entry if self.on else None

    def entry(self, scope: str) -> KilledScope | None:
        """Return who stopped a scope, if the file stops it."""
        if scope == EVERYTHING:
            return self.everything
        return next((entry for entry in self.scopes if entry.scope == scope), None)

    @property
    def killed(self) -> frozenset[str]:
        """All scopes that are stopped."""
        return frozenset([*([EVERYTHING] if self.on else []), *(entry.scope for entry in self.scopes)])

    @property
    def last_by(self) -> str:
        """Author of the last change."""
        others = self.scopes if self.released is None else (*self.scopes, self.released)
        entries = [(self.at, self.by), *((entry.at, entry.by) for entry in others)]
        return max(entries)[1]

    def turned(self, entry: KilledScope, *, on: bool) -> Self:
        """Return the state after the entry's scope was turned on or off; other scopes stay as they are.

        A scope that is stopped already keeps its first reason. Raises `InvalidParameter` if too many are stopped.
        """
        released = self.released if on else entry
        entry = entry.after(self.entry(entry.scope)) if on else entry
        if entry.scope == EVERYTHING:
            own = {"on": on, "by": entry.by, "reason": entry.reason, "at": entry.at}
            return self.model_copy(update={**own, "released": released})
        others = tuple(other for other in self.scopes if other.scope != entry.scope)
        if on and len(others) >= MAX_SCOPES:
            raise InvalidParameter(f"{MAX_SCOPES} scopes are stopped already; allowed: {EVERYTHING}", param="scope")
        return self.model_copy(update={"scopes": (*others, entry) if on else others, "released": released})


def shown_reason(text: str) -> str:
    """Return an operator's reason as it is kept and logged: redacted; the first call reads lists of names."""
    if not text:
        return ""
    from prolepsis.redaction.values import redacted_text  # takes time to import

    return redacted_text(text)[:MAX_REASON]


NEVER_SET = KillState(on=False, at=datetime(1970, 1, 1, tzinfo=UTC))
"""The state without a file."""


def kill_file(path: Path | None = None) -> JsonFile[KillState]:
    """Return the kill file; by default the one that this user's servers and `prolepsis kill` share."""
    adapter = TypeAdapter(KillState)
    return JsonFile(path or data_directory() / "kill.json", adapter, absent=NEVER_SET, param="kill_file")


class KillStatus(BaseModel):
    """The kill switch: a scope is stopped while the file, the store or the flag says so."""

    model_config = ConfigDict(frozen=True)

    operator: KillState = NEVER_SET
    """In the file."""
    shared: tuple[KilledScope, ...] = ()
    """In the store, for all replicas."""
    flag: FlagDecision | None = None
    """The last successful evaluation of the flag; null if no flags are configured."""
    fault: str | None = None
    """Reason why the file cannot be used. The switch then stays as it was; if that is not known, it is on."""
    not_saved: str | None = None
    """Reason why the operator's state will be lost when the server ends."""
    released: KilledScope | None = None
    """The last scope that was released here, or in the file: by whom, when and why."""
    warnings: Mapping[str, str] = Field(default_factory=dict)
    """Stopped scopes that nothing on this server has now, each with a sentence that says what it has."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def sources(self) -> tuple[Source, ...]:
        """Those that stop everything."""
        says: dict[Source, bool] = {
            "operator": self.operator.on,
            "store": any(entry.scope == EVERYTHING for entry in self.shared),
            "flag": self.flag is not None and self.flag.value,
        }
        return tuple(source for source, on in says.items() if on)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def on(self) -> bool:
        """Whether everything is stopped."""
        return bool(self.sources)

    def entry(self, scope: str) -> KilledScope | None:
        """Return who stopped a scope, in the store or in the file; None where neither stops it."""
        return next((one for one in self.shared if one.scope == scope), None) or self.operator.entry(scope)

    def explained(self, scope: str) -> dict[str, object]:
        """Return who stops a scope, or released it, for the log; empty where another server or a flag did."""
        if scope == EVERYTHING:
            sources = self.sources
        else:
            shared = any(one.scope == scope for one in self.shared)
            sources = ("store",) if shared else ("operator",) if scope in self.operator.killed else ()
        released = self.released if self.released is not None and self.released.scope == scope else None
        last = self.entry(scope) if scope in self.killed else released
        by, reason = (last.by, last.reason) if last is not None else ("flag" if "flag" in sources else "", "")
        return {"scope": scope, "sources": sources, "by": by, "reason": reason}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def killed(self) -> tuple[str, ...]:
        """All scopes that are stopped, by name."""
        shared = {entry.scope for entry in self.shared}
        return tuple(sorted(self.operator.killed | shared | ({EVERYTHING} if self.on else set())))
