"""Where a rollout stands: a value that is stored, shared by replicas and survives restarts."""

from dataclasses import dataclass, replace
from typing import Literal, Self

from pydantic import TypeAdapter

from prolepsis.control.rollouts.settings import RolloutSettings

Phase = Literal["off", "running", "gate", "held", "paused", "on", "rolled_back", "aborted"]
ACTIVE: tuple[Phase, ...] = ("running", "gate", "held", "paused")
"""Phases in which requests go to the canary."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Times in seconds, of one clock that all replicas share."""

    rollout_id: str
    plan_version: int
    """Of the plan that is rolled out."""
    version: int = 0
    """Rises by one with each change; a store takes a state only over the one before it (`follows`)."""
    phase: Phase = "off"
    stage: int = 0
    stage_since: float = 0.0
    """When the stage began, moved on by the time it was paused."""
    paused_at: float | None = None
    resumes_to: Phase = "running"

    def follows(self, stored: Self | None) -> bool:
        """Return whether this state may take the place of the stored one: compare-and-swap."""
        if stored is None:
            return True
        return self.rollout_id == stored.rollout_id and self.version == stored.version + 1

    def changed(self, phase: Phase) -> Self:
        """Return the next version, in `phase`."""
        return replace(self, phase=phase, version=self.version + 1)

    def to_json(self) -> bytes:
        return _STATE.dump_json(self)

    @staticmethod
    def from_json(text: bytes | str) -> "RolloutState":
        """Return the stored state; raises pydantic's ValidationError where the text is not one."""
        return _STATE.validate_json(text)


def canary_share(state: RolloutState, settings: RolloutSettings) -> float:
    """Return the share of requests to be served by what is rolled out; shadow serves nothing by it."""
    if state.phase == "on":
        return 1.0 - settings.standing_control
    stage = settings.stages[state.stage]
    return stage.share if state.phase in ACTIVE and stage.kind == "canary" else 0.0


_STATE = TypeAdapter(RolloutState)
