"""What people do to a rollout by hand."""

from dataclasses import replace
from typing import Literal

from prolepsis.control.rollouts.events import Kind, Stepped, change
from prolepsis.control.rollouts.settings import RolloutSettings
from prolepsis.control.rollouts.state import ACTIVE, Phase, RolloutState
from prolepsis.control.rollouts.step import promote
from prolepsis.core.errors import InvalidParameter

Command = Literal["start", "hold", "resume", "promote", "roll_back"]
_ALLOWED: dict[Command, tuple[Phase, ...]] = {
    "start": ("off", "rolled_back"),
    "hold": ("running", "gate"),
    "resume": ("held",),
    "promote": ACTIVE,
    "roll_back": (*ACTIVE, "on"),
}


def command(state: RolloutState, what: Command, now: float, settings: RolloutSettings, reason: str) -> Stepped:
    """Return the state after a command at `now` (seconds), with its event; `reason` says who and why.

    Holding stops the stage's clock and all promotion; the canary keeps its share, and harm still rolls back. Resuming
    what was held for want of a verdict grants the stage its longest time anew. Promoting asks for no verdict. Starting
    what was rolled back begins a new run. Raises `InvalidParameter` where the command means nothing in the state's
    phase.
    """
    if state.phase not in _ALLOWED[what]:
        allowed = ", ".join(_ALLOWED[what])
        raise InvalidParameter(
            f"{what!r} is for rollouts that are {allowed}; this one is {state.phase}", param="command"
        )
    if what == "promote":
        return promote(state, now, settings, reason)
    kind, after = _after(state, what, now)
    return change(kind, state, after, stage=settings.stages[after.stage].name, now=now, reason=reason)


def _after(state: RolloutState, what: Command, now: float) -> tuple[Kind, RolloutState]:
    if what == "start":
        return "started", state.changed("running").at_stage(0, now, run=state.run + 1)
    if what == "hold":
        return "held", replace(state.changed("held"), held_at=now, resumes_to=state.phase)
    if what == "roll_back":
        return "rolled_back", state.changed("rolled_back")
    if state.held_at is None:
        return "resumed", replace(state.changed("running"), stage_since=now)
    moved = state.stage_since + now - state.held_at
    return "resumed", replace(state.changed(state.resumes_to), stage_since=moved, held_at=None)
