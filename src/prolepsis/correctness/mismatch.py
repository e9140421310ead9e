"""What a replay found where it is not what was emitted, without any token of it."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.core.stats import EffectiveMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One request and its first difference."""

    at: float
    """Unix time in seconds."""
    request_id: str
    tenant: str
    route: str
    rule: str | None
    """Of the policy, and its version."""
    policy_version: str | None
    arm: str | None
    mode: EffectiveMode
    sample: int
    position: int
    """Output position, from 0."""
    kind: Literal["near_tie", "structural"]
    margin: float | None
    """As `core.events.Difference` says; also None where one of the tokens was not allowed at all."""
    tolerance: float | None
