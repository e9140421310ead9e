"""Who asks, and what the request says outside its body."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from prolepsis.server.caller import Caller

SPEC_MODE = "x-spec-mode"


@dataclass(frozen=True, slots=True)
class Asker:
    caller: Caller
    route: str = ""
    """Path of the endpoint."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By name in lower case; the first of equal names."""

    @property
    def spec_mode(self) -> str | None:
        return self.headers.get(SPEC_MODE)
