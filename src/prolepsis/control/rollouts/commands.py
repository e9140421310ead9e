"""What people do to a rollout by hand."""

from dataclasses import replace
from typing import Literal

from prolepsis.control.rollouts.events import Kind, Stepped, change
from prolepsis.control.rollouts.settings import RolloutSettings
from prolepsis.control.rollouts.state import ACTIVE, Phase, RolloutState
from prolepsis.control.rollouts.step import promote
from prolepsis.core.errors import InvalidParameter

Command = Literal["start", "approve", "pause", "resume", "abort"]
_ALLOWED: dict[Command, tuple[Phase, ...]] = {
    "start": ("off",),
    "approve": ("gate",),
    "pause": ("running", "gate"),
    "resume": ("paused", "held"),
    "abort": ("off", *ACTIVE, "on"),
}


def command(state: RolloutState, what: Command, now: float, settings: RolloutSettings, reason: str) -> Stepped:
    """Return the state after a command at `now` (seconds), with its event; `reason` says who and why.

    Pausing stops the stage's clock and all promotion; the canary keeps its share, and harm still rolls back. Resuming
    what was held grants the stage its longest time anew. Aborting takes everything back, after completion too. Raises
    `InvalidParameter` where the command means nothing in the state's phase.
    """
    if state.phase not in _ALLOWED[what]:
        allowed = ", ".join(_ALLOWED[what])
        raise InvalidParameter(
            f"{what!r} is for rollouts that are {allowed}; this one is {state.phase}", param="command"
        )
    stage = settings.stages[state.stage].name
    if what == "approve":
        after, events = promote(state, now, settings, reason)
        _, approved = change("approved", state, after, stage=stage, now=now, reason=reason)
        return after, (*approved, *events)
    kind, after = _after(state, what, now)
    return change(kind, state, after, stage=stage, now=now, reason=reason)


def _after(state: RolloutState, what: Command, now: float) -> tuple[Kind, RolloutState]:
    if what == "start":
        return "started", replace(state.changed("running"), stage=0, stage_since=now)
    if what == "pause":
        return "paused", replace(state.changed("paused"), paused_at=now, resumes_to=state.phase)
    if what == "abort":
        return "aborted", state.changed("aborted")
    if state.paused_at is None:
        return "resumed", replace(state.changed("running"), stage_since=now)
    moved = state.stage_since + now - state.paused_at
    return "resumed", replace(state.changed(state.resumes_to), stage_since=moved, paused_at=None)
