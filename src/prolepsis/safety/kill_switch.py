"""The kill switch: no speculation while its file, an operator or a flag says so."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, computed_field

from prolepsis.core.facts import FlagDecision
from prolepsis.core.files import JsonFile, data_directory

Source = Literal["operator", "flag"]


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
    adapter = TypeAdapter(KillState)
    return JsonFile(path or data_directory() / "kill.json", adapter, absent=NEVER_SET, param="kill_file")


class KillStatus(BaseModel):
    """The kill switch: on while the operator or the flag says so."""

    model_config = ConfigDict(frozen=True)

    operator: KillState = NEVER_SET
    flag: FlagDecision | None = None
    """The last successful evaluation of the flag; null if no flags are configured."""
    fault: str | None = None
    """Why the file cannot be used. The switch then stays as it was; if that is not known, it is on."""
    not_saved: str | None = None
    """Why the operator's state will be lost when the server ends."""

    @computed_field  # type: ignore[prop-decorator]  # mypy knows no decorated properties
    @property
    def sources(self) -> tuple[Source, ...]:
        """Those that keep it on."""
        says: dict[Source, bool] = {"operator": self.operator.on, "flag": self.flag is not None and self.flag.value}
        return tuple(source for source, on in says.items() if on)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def on(self) -> bool:
        return bool(self.sources)
