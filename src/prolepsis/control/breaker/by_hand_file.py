"""Which breakers were set by hand, in a file: it outlives the server, and servers of one user share it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from prolepsis.core.directories import data_directory
from prolepsis.core.errors import ConfigError
from prolepsis.core.whole_file import write_whole


class SetByHand(BaseModel):
    """One breaker, and who set it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    proposer: Annotated[str, Field(max_length=64)]
    slice: Annotated[str, Field(max_length=256)]
    state: Literal["forced_open", "forced_closed", "metrics_only"]
    by: Annotated[str, Field(max_length=256)] = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.proposer, self.slice


def default_breaker_file() -> Path:
    return data_directory() / "breakers.json"


class ByHandFile:
    """Reads and writes the file; a write is whole or not at all, and on disk when it returns."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[SetByHand, ...]:
        """Return what is set; raises `ConfigError` for a file that cannot be read or understood."""
        try:
            return _ENTRIES.validate_json(self.path.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            message = f"breaker file {self.path} cannot be read: {error.strerror}"
            raise ConfigError(message, param="breaker_file") from None
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"])) or "the file"
            message = f"breaker file {self.path} is damaged: {where}: {problem['msg'].lower()}"
            raise ConfigError(message, param="breaker_file") from None

    def write(self, entries: tuple[SetByHand, ...]) -> None:
        """Replace the file; raises `ConfigError` where that fails, and what was there stays."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(self.path, _ENTRIES.dump_json(entries))
        except OSError as error:
            message = f"breaker file {self.path} cannot be written: {error.strerror}"
            raise ConfigError(message, param="breaker_file") from None


_ENTRIES = TypeAdapter(tuple[SetByHand, ...])
