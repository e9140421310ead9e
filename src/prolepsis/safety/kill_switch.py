"""Where the kill switch stands, in a file: it outlives the server, and works while none runs."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import structlog
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.errors import ConfigError
from prolepsis.core.files import data_directory, stamp, write_whole
from prolepsis.safety.flags import FlagDecision
from prolepsis.telemetry.control import ControlMetrics

log = structlog.get_logger(__name__)


class KillState(BaseModel):
    """Who turned it which way, when and why."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: bool
    by: Annotated[str, Field(max_length=256)] = ""
    reason: Annotated[str, Field(max_length=1024)] = ""
    at: AwareDatetime


NEVER = KillState(on=False, at=datetime(1970, 1, 1, tzinfo=UTC))
"""Where there is no file."""


def default_kill_file() -> Path:
    """Return the file that servers of this user look at and `prolepsis kill` writes."""
    return data_directory() / "kill.json"


class KillFile:
    """Reads and writes the file; a write is whole or not at all, and on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> KillState:
        """Return the state; raises `ConfigError` for a file that cannot be read or understood."""
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return NEVER
        except OSError as error:
            raise ConfigError(f"kill file {self.path} cannot be read: {error.strerror}", param="kill_file") from None
        try:
            return KillState.model_validate_json(text)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the file"
            message = f"kill file {self.path} is damaged: {where}: {problem['msg'].lower()}"
            raise ConfigError(message, param="kill_file") from None

    def write(self, state: KillState) -> None:
        """Replace the file; raises `ConfigError` where that fails, and what was there stays."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, state.model_dump_json().encode())
        except OSError as error:
            raise ConfigError(f"kill file {self.path} cannot be written: {error.strerror}", param="kill_file") from None


@dataclass(frozen=True, slots=True)
class KillStatus:
    """Who keeps it on, if anybody."""

    operator: KillState
    flag: FlagDecision | None
    """The last answer of the flag that was none of an error; None where no flags are asked."""
    fault: str
    """Why the file cannot be used; the switch then stays as it was, and is on where it was not known."""

    @property
    def on(self) -> bool:
        return self.operator.on or self.by_flag

    @property
    def by_flag(self) -> bool:
        return self.flag is not None and self.flag.value

    @property
    def sources(self) -> list[str]:
        """Return who keeps it on: operator, flag."""
        return ["operator"] * self.operator.on + ["flag"] * self.by_flag


class KillSwitch:
    """Tells `kill` whenever it turns. Belongs to one event loop."""

    def __init__(
        self,
        file: KillFile,
        kill: Callable[[bool], None],
        metrics: ControlMetrics,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.status = KillStatus(NEVER, None, "")
        self._file = file
        self._kill = kill
        self._metrics = metrics
        self._now = now
        self._stamp = stamp(file.path)
        self._read(at_start=True)

    def look(self) -> None:
        """Follow the file where it changed; cheap where it did not."""
        now = stamp(self._file.path)
        if now != self._stamp:
            self._stamp = now
            self._read(at_start=False)

    def turn(self, *, on: bool, by: str, reason: str) -> str:
        """Turn the operator's switch, at once; return why it will not outlive the server, nothing where it will."""
        state = KillState(on=on, by=by, reason=reason, at=self._now())
        self._become(KillStatus(state, self.status.flag, ""))
        try:
            self._file.write(state)
        except ConfigError as error:
            log.error("kill_switch_not_kept", error=str(error))
            return str(error)
        self._stamp = stamp(self._file.path)
        return ""

    def follow(self, flag: FlagDecision) -> None:
        """Follow the flag; an answer that is an error changes nothing."""
        if not flag.error:
            self._become(KillStatus(self.status.operator, flag, self.status.fault))

    def _read(self, *, at_start: bool) -> None:
        """Take over the file's state. What is damaged at the start may have been on, so it counts as that."""
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
        self._metrics.killed.labels("operator").set(status.operator.on)
        self._metrics.killed.labels("flag").set(status.by_flag)
        if status.on == before.on:
            return
        self._kill(status.on)
        operator = status.operator
        say = log.warning if status.on else log.info
        say("kill_switch", on=status.on, sources=status.sources, by=operator.by, reason=operator.reason)
