"""The engine's plan, combined from load shedding, breakers and the kill switch, which overrides both."""

from collections.abc import Callable
from dataclasses import replace

from prolepsis.core.plan import PANIC_PLAN, DisabledProposer, SpecPlan

KILLED = "killed"
"""The plan's reason while the kill switch is on."""


class EffectivePlan:
    """Applies a new plan whenever one of its parts changes; versions rise. Belongs to one event loop."""

    def __init__(self, base: SpecPlan, apply: Callable[[SpecPlan], None]) -> None:
        self.version = base.version
        self._shed = base
        self._disabled: tuple[DisabledProposer, ...] = ()
        self._killed = False
        self._apply = apply

    def shed(self, plan: SpecPlan) -> None:
        """Set the plan that load shedding allows: the base, or less."""
        self._shed = plan
        self._change()

    def disable(self, disabled: tuple[DisabledProposer, ...]) -> None:
        """Leave out these proposers and no others."""
        if disabled != self._disabled:
            self._disabled = disabled
            self._change()

    def kill(self, *, on: bool) -> None:
        """Stop all speculation between two steps, or continue with the other parts' plan."""
        if on != self._killed:
            self._killed = on
            self._change()

    def _change(self) -> None:
        self.version += 1
        plan = replace(PANIC_PLAN, reason=KILLED) if self._killed else replace(self._shed, disabled=self._disabled)
        self._apply(replace(plan, version=self.version))
