"""The load shedding ladder: what gives way, in which order, as the queue ages."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from prolepsis.core.plan import SpecPlan

CALM, SHALLOW, PLAIN, BATCH_WAITS, LOW_REFUSED = range(5)
RUNGS: tuple[str, ...] = ("calm", "shallow", "plain", "batch_waits", "low_refused")
SHALLOW_DIVISOR = 4
"""On the first rung drafts keep this fraction of the plan's depth, at least one token."""
DESCENT = 0.5
"""A rung is left downwards only below this share of the age at which it was entered."""


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """`climb_at[i]`: age (seconds) of the queue's oldest request from which rung i + 1 holds; empty: never."""

    climb_at: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0)
    hold_s: float = 5.0
    """How long the age must stay low before a rung is left downwards, and the least time between two rungs down."""

    def __post_init__(self) -> None:
        assert len(self.climb_at) in (0, len(RUNGS) - 1), "one age for each rung"
        assert list(self.climb_at) == sorted(self.climb_at), "ages rise"


@dataclass(frozen=True, slots=True)
class LadderState:
    rung: int = CALM
    low_since: float | None = None
    """Since when the age has been low enough to leave the rung downwards."""


def climb(state: LadderState, age_s: float, now: float, settings: LadderSettings) -> LadderState:
    """Return the state after seeing an age of the queue at time `now` (seconds).

    Upwards at once, as many rungs as the age asks for; downwards one rung at a time, each after `hold_s` of calm.
    """
    asked = sum(age_s >= threshold for threshold in settings.climb_at)
    if asked > state.rung:
        return LadderState(asked)
    if state.rung == CALM or age_s >= DESCENT * settings.climb_at[state.rung - 1]:
        return replace(state, low_since=None)
    if state.low_since is None:
        return replace(state, low_since=now)
    if now - state.low_since < settings.hold_s:
        return state
    return LadderState(state.rung - 1, low_since=now)


Direction = Literal["up", "down"]


def plan_at(rung: int, base: SpecPlan, version: int) -> SpecPlan:
    """Return the plan in effect on `rung`; `base` itself where nothing gives way."""
    if rung == CALM:
        return replace(base, version=version)
    depth = base.num_speculative_tokens
    depth = 0 if rung >= PLAIN or depth == 0 else max(1, depth // SHALLOW_DIVISOR)
    fixed = None if base.fixed_depth is None else min(base.fixed_depth, depth)
    return replace(base, version=version, num_speculative_tokens=depth, fixed_depth=fixed, reason=REASONS[rung])


REASONS: Sequence[str] = ("", "overload_shallow", "overload_plain", "overload_batch_waits", "overload_low_refused")
"""Of the plan on each rung, and so of the mode in effect that requests report."""
