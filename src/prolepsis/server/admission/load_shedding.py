"""Load shedding: levels at which more and more is given up as the queue gets older."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import structlog

from prolepsis.core.plan import SpecPlan
from prolepsis.server.admission.metrics import AdmissionMetrics

log = structlog.get_logger(__name__)

CALM, SHALLOW, PLAIN, BATCH_WAITS, LOW_REFUSED = range(5)
LEVELS: tuple[str, ...] = ("calm", "shallow", "plain", "batch_waits", "low_refused")
SHALLOW_DIVISOR = 4
"""On the first level drafts keep this fraction of the plan's depth, at least one token."""
DESCENT = 0.5
"""A level is left downwards only below this share of the age at which it was entered."""


@dataclass(frozen=True, slots=True)
class ShedSettings:
    """`raise_at[i]`: age (seconds) of the queue's oldest request from which level i + 1 holds; empty: never."""

    raise_at: tuple[float, ...] = (2.0, 5.0, 10.0, 20.0)
    hold_s: float = 5.0
    """How long the age must stay low before a level is left downwards, and the least time between two levels down."""

    def __post_init__(self) -> None:
        assert len(self.raise_at) in (0, len(LEVELS) - 1), "one age for each level"
        assert list(self.raise_at) == sorted(self.raise_at), "ages rise"


@dataclass(frozen=True, slots=True)
class ShedState:
    level: int = CALM
    low_since: float | None = None  # since when the age has been low enough to leave the level downwards


def next_level(state: ShedState, age_s: float, now: float, settings: ShedSettings) -> ShedState:
    """Return the state after seeing an age of the queue at time `now` (seconds).

    Upwards at once, as many levels as the age asks for; downwards one level at a time, each after `hold_s` of calm.
    """
    level = sum(age_s >= threshold for threshold in settings.raise_at)
    if level > state.level:
        return ShedState(level)
    if not _is_low(age_s, state.level, settings):
        return replace(state, low_since=None)
    if state.low_since is None:
        return replace(state, low_since=now)
    if now - state.low_since < settings.hold_s:
        return state
    return ShedState(state.level - 1, low_since=now if _is_low(age_s, state.level - 1, settings) else None)


def _is_low(age_s: float, level: int, settings: ShedSettings) -> bool:
    """Return whether an age is low enough to leave a level downwards."""
    return level != CALM and age_s < DESCENT * settings.raise_at[level - 1]


def plan_at(level: int, base: SpecPlan, version: int) -> SpecPlan:
    """Return the plan in effect on `level`; `base` itself where nothing gives way."""
    if level == CALM:
        return replace(base, version=version)
    depth = base.num_speculative_tokens
    depth = 0 if level >= PLAIN or depth == 0 else max(1, depth // SHALLOW_DIVISOR)
    fixed = None if base.fixed_depth is None else min(base.fixed_depth, depth)
    return replace(base, version=version, num_speculative_tokens=depth, fixed_depth=fixed, reason=REASONS[level])


REASONS: Sequence[str] = ("", "overload_shallow", "overload_plain", "overload_batch_waits", "overload_low_refused")
"""The reason of each level's plan, which requests report with their mode in effect."""


TierName = Literal["premium", "standard", "economy", "batch", "background"]


@dataclass(frozen=True, slots=True)
class Tier:
    weight: float  # share of the engine against other tiers that have work waiting
    waits_from: int | None = None  # rung from which its requests stay in the queue
    refused_from: int | None = None  # rung from which its new requests are refused


TIERS: dict[str, Tier] = {
    "premium": Tier(4.0),
    "standard": Tier(2.0),
    "economy": Tier(1.0, refused_from=LOW_REFUSED),
    "batch": Tier(1.0, waits_from=BATCH_WAITS, refused_from=LOW_REFUSED),
    "background": Tier(1.0, waits_from=SHALLOW, refused_from=LOW_REFUSED),
}
DEFAULT_TIER: TierName = "standard"
BACKGROUND_TIER: TierName = "background"
"""Of the lines of batches: they get what all others leave, have limits of their own, and wait where anything waits."""


PATIENT = frozenset(name for name, tier in TIERS.items() if tier.waits_from is not None)
"""Tiers whose waiting is not a sign of overload: their requests may wait."""


class LoadShedder:
    """The levels in effect: of each tenant whose own requests wait, and of the server.

    One tenant's backlog sheds that tenant's work only. It sheds the work of all where a second tenant waits as long.
    The plan, which all requests share, gives way also where no other tenant had a request for `hold_s`.
    """

    def __init__(
        self, settings: ShedSettings, base: SpecPlan, apply_plan: Callable[[SpecPlan], None], metrics: AdmissionMetrics
    ) -> None:
        self.level = CALM
        """The server's, which its plan follows."""
        self._settings = settings
        self._base = base
        self._apply_plan = apply_plan
        self._metrics = metrics
        self._shared = ShedState()
        self._of_tenant: dict[str, ShedState] = {}
        """Of tenants that are not calm."""
        self._last_seen: dict[str, float] = {}
        """When each tenant last had a request here, for `hold_s`."""
        self._version = base.version

    def holds(self, tenant: str, tier: str) -> bool:
        """Return whether the tenant's requests of this tier stay in the queue."""
        waits_from = TIERS[tier].waits_from
        return waits_from is not None and self._level_of(tenant) >= waits_from

    def refuses(self, tenant: str, tier: str) -> bool:
        """Return whether the tenant's new requests of this tier are refused."""
        refused_from = TIERS[tier].refused_from
        return refused_from is not None and self._level_of(tenant) >= refused_from

    def observe(self, ages: Mapping[str, float], present: Collection[str], now: float) -> None:
        """Take in at `now` the age (seconds) of the oldest request of each tenant that waits, and the tenants that have
        any request here; act where a level changes.
        """
        states = {
            tenant: next_level(self._of_tenant.get(tenant, ShedState()), ages.get(tenant, 0.0), now, self._settings)
            for tenant in {*ages, *self._of_tenant}
        }
        self._of_tenant = {tenant: state for tenant, state in states.items() if state.level != CALM}
        second = sorted(ages.values())[-2] if len(ages) > 1 else 0.0
        self._shared = next_level(self._shared, second, now, self._settings)
        seen = self._last_seen | dict.fromkeys(present, now)
        self._last_seen = {tenant: at for tenant, at in seen.items() if now - at < self._settings.hold_s}
        there = {*self._last_seen, *self._of_tenant}
        self._set_level(
            self._level_of(*there) if len(there) == 1 else self._shared.level, max(ages.values(), default=0)
        )

    def _level_of(self, tenant: str) -> int:
        own = self._of_tenant.get(tenant)
        return self._shared.level if own is None else max(own.level, self._shared.level)

    def _set_level(self, level: int, age_s: float) -> None:
        before, self.level = self.level, level
        if level == before:
            return
        self._version += 1
        self._apply_plan(plan_at(level, self._base, self._version))
        self._metrics.level.set(level)
        self._metrics.level_changes.labels(LEVELS[level], "up" if level > before else "down").inc()
        say = log.warning if level > before else log.info
        say("load_shedding", level=LEVELS[level], before=LEVELS[before], queue_age_s=round(age_s, 2))
