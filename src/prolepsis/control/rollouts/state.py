"""Where a rollout stands: a value that is stored, shared by replicas and survives restarts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from pydantic import TypeAdapter

from prolepsis.control.rollouts.settings import RolloutSettings
from prolepsis.control.verdicts.guardrail import Guardrail

Phase = Literal["off", "running", "gate", "held", "on", "rolled_back"]
ACTIVE: tuple[Phase, ...] = ("running", "gate", "held")
"""Phases in which requests go to the canary."""


@dataclass(frozen=True, slots=True)
class RolloutState:
    """Times in seconds, of one clock that all replicas share."""

    rollout_id: str
    plan_version: str
    """Of the policy that it was last changed under."""
    version: int = 0
    """Rises by one with each change; a store takes a state only over the one before it (`follows`)."""
    run: int = 0
    """How often it was started."""
    phase: Phase = "off"
    stage: int = 0
    stage_since: float = 0.0
    """When the stage began, moved on by the time it was held by hand."""
    held_at: float | None = None
    """Where it was held by hand: since when; None where it was held for want of a verdict."""
    resumes_to: Phase = "running"
    references: Mapping[str, float] = field(default_factory=dict)
    """What the control showed before the stage, by guardrail: replicas test against the same number."""

    def follows(self, stored: Self | None) -> bool:
        """Return whether this state may take the place of the stored one: compare-and-swap."""
        if stored is None:
            return True
        return self.rollout_id == stored.rollout_id and self.version == stored.version + 1

    def has_ended(self, run: int, stage: int) -> bool:
        """Return whether nothing is decided any more by what was seen in that stage."""
        return self.phase not in ACTIVE or (run, stage) < (self.run, self.stage)

    def changed(self, phase: Phase) -> Self:
        """Return the next version, in `phase`."""
        return replace(self, phase=phase, version=self.version + 1)

    def at_stage(self, stage: int, now: float, *, run: int | None = None) -> Self:
        """Return the state at the beginning of a stage, in the same version."""
        run = self.run if run is None else run
        return replace(self, run=run, stage=stage, stage_since=now, held_at=None, references={})

    def to_json(self) -> bytes:
        return _STATE.dump_json(self)

    @staticmethod
    def from_json(text: bytes | str) -> "RolloutState":
        """Return the stored state; raises pydantic's ValidationError where the text is not one."""
        return _STATE.validate_json(text)


def guardrails_of(state: RolloutState, settings: RolloutSettings) -> tuple[Guardrail, ...]:
    """Return the guardrails of the stage the rollout is in, with its references."""
    references = state.references
    return tuple(
        guardrail.referring_to(references[guardrail.name]) if guardrail.name in references else guardrail
        for guardrail in settings.stages[state.stage].guardrails
    )


def canary_share(state: RolloutState, settings: RolloutSettings) -> float:
    """Return the share of requests to be served by what is rolled out; shadow serves nothing by it."""
    if state.phase == "on":
        return 1.0 - settings.standing_control
    stage = settings.stages[state.stage]
    return stage.share if state.phase in ACTIVE and stage.kind == "canary" else 0.0


_STATE = TypeAdapter(RolloutState)
