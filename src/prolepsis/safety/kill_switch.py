"""The kill switch: no speculation while its file, an operator or a flag says so."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
from prometheus_client import CollectorRegistry, Gauge
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

from prolepsis.core.audit_event import AuditEvent, Emit, discard
from prolepsis.core.errors import ConfigError
from prolepsis.core.files import JsonFile, data_directory
from prolepsis.safety.flags import FlagDecision

log = structlog.get_logger(__name__)


class KillState(BaseModel):
    """The operator's switch, with who set it, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: bool
    by: Annotated[str, Field(max_length=256)] = ""
    reason: Annotated[str, Field(max_length=1024)] = ""
    at: AwareDatetime


NEVER_SET = KillState(on=False, at=datetime(1970, 1, 1, tzinfo=UTC))
"""The state without a file."""


def kill_file(path: Path | None = None) -> JsonFile[KillState]:
    """Return the kill file; by default the one that this user's servers and `prolepsis kill` share."""
    return JsonFile(path or data_directory() / "kill.json", TypeAdapter(KillState), absent=NEVER_SET, param="kill_file")


@dataclass(frozen=True, slots=True)
class KillStatus:
    """The switch with everything that may keep it on."""

    operator: KillState
    flag: FlagDecision | None
    """The last successful evaluation of the flag; None if no flags are configured."""
    fault: str
    """Why the file cannot be used. The switch then stays as it was; if that is not known, it is on."""

    @property
    def on(self) -> bool:
        return self.operator.on or self.by_flag

    @property
    def by_flag(self) -> bool:
        return self.flag is not None and self.flag.value

    @property
    def sources(self) -> list[str]:
        """Return what keeps it on: operator, flag."""
        return ["operator"] * self.operator.on + ["flag"] * self.by_flag

    def plain(self) -> dict[str, object]:
        """Return the status as plain JSON values."""
        operator, flag = self.operator, self.flag
        return {
            "on": self.on,
            "sources": self.sources,
            "operator": operator.model_dump() | {"at": operator.at.isoformat()},
            "flag": None if flag is None else {"on": flag.value, "variant": flag.variant, "reason": flag.reason},
            "fault": self.fault or None,
        }


class KillSwitch:
    """Calls `kill` whenever the switch turns. Belongs to one event loop."""

    def __init__(
        self,
        file: JsonFile[KillState],
        kill: Callable[[bool], None],
        registry: CollectorRegistry,
        *,
        emit: Emit = discard,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.status = KillStatus(NEVER_SET, None, "")
        self._file = file
        self._kill = kill
        self._killed = Gauge(
            "prolepsis_speculation_killed", "1 while the kill switch is on, by source", ["source"], registry=registry
        )
        self._emit = emit
        self._now = now
        self._read(at_start=True)

    def poll(self) -> None:
        """Follow the file if it changed."""
        if self._file.changed():
            self._read(at_start=False)

    def turn(self, *, on: bool, by: str, reason: str) -> str:
        """Turn the operator's switch at once; return an error message if the state could not be saved, else ""."""
        before = self.status
        state = KillState(on=on, by=by, reason=reason, at=self._now())
        self._become(KillStatus(state, self.status.flag, ""))
        action = "kill.on" if on else "kill.off"
        self._emit(AuditEvent(actor=by, action=action, before=before.plain(), after=self.status.plain()))
        try:
            self._file.write(state)
        except ConfigError as error:
            log.error("kill_switch_not_saved", error=str(error))
            return str(error)
        return ""

    def follow(self, flag: FlagDecision) -> None:
        """Follow the flag; an evaluation that failed changes nothing."""
        if not flag.error:
            self._become(KillStatus(self.status.operator, flag, self.status.fault))

    def _read(self, *, at_start: bool) -> None:
        """Take over the file's state. A file that is damaged at the start counts as on, because it may have been."""
        try:
            operator, fault = self._file.read(), ""
        except ConfigError as error:
            fault = str(error)
            log.error("kill_file_unusable", error=fault)
            unknown = KillState(on=True, reason=fault[:1024], at=self._now())
            operator = unknown if at_start else self.status.operator
        self._become(KillStatus(operator, self.status.flag, fault))

    def _become(self, status: KillStatus) -> None:
        before, self.status = self.status, status
        if status == before and status.flag is not None:  # without flags it is the first time, with metrics to set
            return
        self._killed.labels("operator").set(status.operator.on)
        self._killed.labels("flag").set(status.by_flag)
        if status.on == before.on:
            return
        self._kill(status.on)
        operator = status.operator
        write = log.warning if status.on else log.info
        write("kill_switch", on=status.on, sources=status.sources, by=operator.by, reason=operator.reason)
