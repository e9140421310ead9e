"""The engine's plan, put together from those who have a say: load shedding, breakers, and the kill switch over all."""

from collections.abc import Callable
from dataclasses import replace

from prolepsis.core.plan import PANIC_PLAN, LeftOut, SpecPlan

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

    def leave_out(self, left_out: tuple[LeftOut, ...]) -> None:
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
