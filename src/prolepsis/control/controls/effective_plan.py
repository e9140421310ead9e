"""The engine's plan, combined from load shedding, breakers and the kill switch, which overrides both."""

from collections.abc import Callable
from dataclasses import replace

from prolepsis.core.kill_scope import EVERYTHING
from prolepsis.core.plan import KILLED, PANIC_PLAN, DisabledProposer, SpecPlan


class EffectivePlan:
    """Applies a new plan whenever one of its parts changes; versions rise. Belongs to one event loop."""

    def __init__(self, base: SpecPlan, apply: Callable[[SpecPlan], None]) -> None:
        self.version = base.version
        self._shed = base
        self._disabled: tuple[DisabledProposer, ...] = ()
        self._killed: frozenset[str] = frozenset()
        self._apply = apply
        self._is_applied = True
        """False after a failure of `apply`: the next call tries again, also with equal parts."""

    def shed(self, plan: SpecPlan) -> None:
        """Set the plan that load shedding allows: the base, or less."""
        self._shed = plan
        self._change()

    def disable(self, disabled: tuple[DisabledProposer, ...]) -> None:
        """Leave out these proposers and no others."""
        if disabled != self._disabled or not self._is_applied:
            self._disabled = disabled
            self._change()

    def kill(self, killed: frozenset[str]) -> None:
        """Stop speculation in these scopes between two steps and in no others; the rest follows the other parts."""
        if killed != self._killed or not self._is_applied:
            self._killed = killed
            self._change()

    def _change(self) -> None:
        self.version += 1
        self._is_applied = False
        if EVERYTHING in self._killed:
            plan = replace(PANIC_PLAN, reason=KILLED)
        else:
            plan = replace(self._shed, disabled=self._disabled, killed=self._killed)
        self._apply(replace(plan, version=self.version))
        self._is_applied = True
