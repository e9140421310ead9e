"""The kill switch: no speculation while its file, an operator or a flag says so."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KillStatus:
    """The kill switch: on while the operator or the flag says so."""

    on: bool
    sources: tuple[Source, ...]
    """Those that keep it on."""
    operator: KillState
    flag: FlagDecision | None
    """The last successful evaluation of the flag; null if no flags are configured."""
    fault: str | None
    """Why the file cannot be used. The switch then stays as it was; if that is not known, it is on."""
    not_saved: str | None
    """Why the operator's state will be lost when the server ends."""

    @classmethod
    def of(
        cls, operator: KillState, flag: FlagDecision | None, *, fault: str | None = None, not_saved: str | None = None
    ) -> "KillStatus":
        """Return the status that follows from operator and flag."""
        sources: list[Source] = ["operator"] if operator.on else []
        sources += ["flag"] if flag is not None and flag.value else []
        return cls(
            on=bool(sources), sources=tuple(sources), operator=operator, flag=flag, fault=fault, not_saved=not_saved
        )
