"""What happened to a rollout, for the audit log, metrics and people."""

from dataclasses import dataclass
from typing import Literal

from pydantic import TypeAdapter

from prolepsis.control.rollouts.state import RolloutState
from prolepsis.control.verdicts.judge import Verdict

Kind = Literal[
    "started",
    "promoted",  # to the next stage
    "gate_reached",  # passed, and waits for somebody to promote it
    "completed",
    "rolled_back",
    "held",  # by hand, or because no verdict came in time or is to be had: waits for somebody
    "resumed",
]


@dataclass(frozen=True, slots=True)
class RolloutEvent:
    at: float
    rollout_id: str
    plan_version: str
    version: int
    """Of the state that the event led to."""
    kind: Kind
    stage: str
    """Name of the stage that it happened in."""
    reason: str
    verdict: Verdict | None = None
    """With the numbers that decided; None for what was done by hand."""

    def to_json(self) -> bytes:
        return _EVENT.dump_json(self)

    @staticmethod
    def from_json(text: bytes | str) -> "RolloutEvent":
        """Return the stored event; raises pydantic's ValidationError where the text is not one."""
        return _EVENT.validate_json(text)


Stepped = tuple[RolloutState, tuple[RolloutEvent, ...]]
"""The state after, and what happened; the state itself and nothing where nothing did."""


def change(
    kind: Kind,
    before: RolloutState,
    after: RolloutState,
    *,
    stage: str,
    now: float,
    reason: str,
    verdict: Verdict | None = None,
) -> Stepped:
    """Return `after` with the event of the change, which happened in the stage of `before`."""
    told = RolloutEvent(now, before.rollout_id, before.plan_version, after.version, kind, stage, reason, verdict)
    return after, (told,)


_EVENT = TypeAdapter(RolloutEvent)
