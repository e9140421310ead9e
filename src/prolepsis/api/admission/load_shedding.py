"""The load shedding ladder: what gives way, in which order, as the queue ages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from prolepsis.core.plan import SpecPlan
from prolepsis.telemetry.door import DoorMetrics

log = structlog.get_logger(__name__)

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


TierName = Literal["premium", "standard", "economy", "batch"]


@dataclass(frozen=True, slots=True)
class Tier:
    name: TierName
    weight: float
    """Share of the engine against other tiers that have work waiting."""
    waits_from: int | None = None
    """Rung from which its requests stay in the queue."""
    refused_from: int | None = None
    """Rung from which its new requests are refused."""


TIERS: dict[str, Tier] = {
    "premium": Tier("premium", 4.0),
    "standard": Tier("standard", 2.0),
    "economy": Tier("economy", 1.0, refused_from=LOW_REFUSED),
    "batch": Tier("batch", 1.0, waits_from=BATCH_WAITS, refused_from=LOW_REFUSED),
}
DEFAULT_TIER: TierName = "standard"


PATIENT = frozenset(name for name, tier in TIERS.items() if tier.waits_from is not None)
"""Tiers whose waiting is no sign of overload: they are there to wait."""


class Overload:
    """The rung in effect."""

    def __init__(
        self,
        settings: LadderSettings,
        base: SpecPlan,
        apply_plan: Callable[[SpecPlan], None],
        metrics: DoorMetrics,
    ) -> None:
        self._settings = settings
        self._base = base
        self._apply_plan = apply_plan
        self._metrics = metrics
        self._state = LadderState()
        self._version = base.version

    @property
    def rung(self) -> int:
        return self._state.rung

    @property
    def held(self) -> frozenset[str]:
        """Tiers whose requests stay in the queue."""
        return frozenset(n for n, tier in TIERS.items() if tier.waits_from is not None and self.rung >= tier.waits_from)

    def refuses(self, tier: str) -> bool:
        refused_from = TIERS[tier].refused_from
        return refused_from is not None and self.rung >= refused_from

    def observe(self, age_s: float, now: float) -> None:
        """Take in the age of the queue (seconds) at `now`, and act where the rung changes."""
        before, self._state = self.rung, climb(self._state, age_s, now, self._settings)
        if self.rung == before:
            return
        self._version += 1
        self._apply_plan(plan_at(self.rung, self._base, self._version))
        self._metrics.rung.set(self.rung)
        self._metrics.rung_changes.labels(RUNGS[self.rung], "up" if self.rung > before else "down").inc()
        say = log.warning if self.rung > before else log.info
        say("load_shedding", rung=RUNGS[self.rung], before=RUNGS[before], queue_age_s=round(age_s, 2))
