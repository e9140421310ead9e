"""Where the kill switch stands, in a file: it outlives the server, and works while none runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from prolepsis.core.directories import data_directory
from prolepsis.core.errors import ConfigError
from prolepsis.core.whole_file import write_whole


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
