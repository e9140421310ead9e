"""Drives the ladder: sees the queue's age, swaps the plan, says which tiers wait and which are refused."""

from collections.abc import Callable

import structlog

from prolepsis.core.plan import SpecPlan
from prolepsis.server.door.ladder import RUNGS, LadderSettings, LadderState, climb, plan_at
from prolepsis.server.door.tiers import TIERS
from prolepsis.telemetry.door import DoorMetrics

PATIENT = frozenset(name for name, tier in TIERS.items() if tier.waits_from is not None)
"""Tiers whose waiting is no sign of overload: they are there to wait."""

log = structlog.get_logger(__name__)


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
