"""The engine's plan, put together from those who have a say: load shedding, breakers, and the kill switch over all."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import structlog

from prolepsis.core.plan import PANIC_PLAN, LeftOut, SpecPlan
from prolepsis.safety.drift import load_detectors
from prolepsis.safety.drift_watch import DriftWatch
from prolepsis.safety.feature_flags import FeatureFlags
from prolepsis.safety.kill_switch import KillSwitch

log = structlog.get_logger(__name__)

KILLED = "killed"
"""The plan's reason while the kill switch is on."""


class PlanInEffect:
    """Applies another plan wherever one of them changes its mind; versions rise. Belongs to one event loop."""

    def __init__(self, base: SpecPlan, apply: Callable[[SpecPlan], None]) -> None:
        self.version = base.version
        self._shed = base
        self._left_out: tuple[LeftOut, ...] = ()
        self._killed = False
        self._apply = apply

    def shed(self, plan: SpecPlan) -> None:
        """Let `plan` hold while nothing else is said: the base, or what load leaves of it."""
        self._shed = plan
        self._change()

    def disable(self, left_out: tuple[LeftOut, ...]) -> None:
        """Leave out these and no others."""
        if left_out != self._left_out:
            self._left_out = left_out
            self._change()

    def kill(self, *, on: bool) -> None:
        """Stop all speculation between two steps, or go on with what the others say."""
        if on != self._killed:
            self._killed = on
            self._change()

    def _change(self) -> None:
        self.version += 1
        plan = replace(PANIC_PLAN, reason=KILLED) if self._killed else replace(self._shed, left_out=self._left_out)
        self._apply(replace(plan, version=self.version))


LOOK_EVERY_S = 0.2
ASK_EVERY_S = 1.0
"""How often a provider without a file is asked for the flag that stops everything; a file that changed, at once."""


@dataclass(frozen=True, slots=True)
class Watch:
    """Kill switch, flags (None: none are configured) and drift (None: it is off)."""

    kill: KillSwitch
    flags: FeatureFlags | None
    drift: DriftWatch | None

    async def run(self) -> None:
        """Look until cancelled; at drift from when its detectors are imported."""
        loading = None if self.drift is None else asyncio.create_task(asyncio.to_thread(load_detectors))
        for number in count():
            is_due = number % round(ASK_EVERY_S / LOOK_EVERY_S) == 0
            await self.look(drift=loading is not None and loading.done(), ask=is_due)
            await asyncio.sleep(LOOK_EVERY_S)

    async def look(self, *, drift: bool = True, ask: bool = True) -> None:
        """Look once at each, or leave drift out; one that fails is logged, and keeps the others from nothing.

        `ask`: the flag that stops everything is asked for even where its file did not change.
        """
        _contained(self.kill.poll)
        if self.flags is not None and (_contained(self.flags.look) or ask):
            self.kill.follow(await self.flags.killed())
        if drift and self.drift is not None:
            _contained(self.drift.poll)


def _contained(look: Callable[[], bool | None]) -> bool:
    """Return what `look` does."""
    try:
        return bool(look())
    except Exception:  # contained: if control fails, the last plan stays
        log.exception("watch_failed")
        return False
