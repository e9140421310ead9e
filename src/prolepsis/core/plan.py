"""The speculation plan: the one value by which control enters the engine, swapped between two steps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

from prolepsis.core.reasons import EffectiveReason, OverloadReason

MAX_STOPPED_RUNS = 256
"""Stopped runs that an engine remembers; requests of older runs have all ended."""

_OFF: tuple[OverloadReason, ...] = get_args(OverloadReason)
"""Reasons of plans that turn speculation off, which requests report."""

KILLED = "killed"
"""The plan's reason while the kill switch stops everything."""


@dataclass(frozen=True, slots=True)
class DisabledProposer:
    """A proposer that may not draft for one traffic class, requests in flight included."""

    proposer: str
    traffic_class: str
    num_trials: int = 0  # drafts that it may still make, to judge it again
    trial_round: int = 0
    """A grant of another number is a new one; the same one again, in a later plan, grants nothing more."""
    compared: bool = False
    """Its drafts may still be compared with what plain decoding emits: a rollout is judged by them."""
    tenants: frozenset[str] = frozenset()  # the only tenants for which it may not draft; none: for no tenant


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """The proposers that may draft, and their limits; `num_speculative_tokens` 0 is plain decoding everywhere."""

    version: int = 0
    num_speculative_tokens: int = 24
    proposers: tuple[str, ...] | None = None  # none: every proposer the engine has
    fixed_depth: int | None = None
    """Draft exactly this many tokens where possible instead of letting the window decide (benchmarks, tests)."""
    reason: str = "default"
    stopped: frozenset[str] = frozenset()
    """Runs of rollouts that were rolled back: their requests decode plainly, in flight too. The engine keeps the last
    ones over later plans (`AppliedPlan`)."""
    disabled: tuple[DisabledProposer, ...] = ()
    killed: frozenset[str] = frozenset()
    """Scopes that the kill switch stops besides everything (`core.kill_scope`): their requests decode plainly, in
    flight too, and their proposers draft for no request."""

    @property
    def ceiling(self) -> int:
        """Most tokens that a draft may have; 0: plain decoding."""
        return (
            self.num_speculative_tokens
            if self.fixed_depth is None
            else min(self.fixed_depth, self.num_speculative_tokens)
        )

    @property
    def off_reason(self) -> EffectiveReason:
        """The reason that requests report where the ceiling is 0."""
        return next((reason for reason in _OFF if reason == self.reason), "plan_off")

    def kills(self, scopes: frozenset[str]) -> bool:
        """Return whether the kill switch stops a request that belongs to `scopes`."""
        return self.reason == KILLED or not self.killed.isdisjoint(scopes)


PANIC_PLAN = SpecPlan(version=-1, num_speculative_tokens=0, reason="panic")


def strictest(plans: Sequence[SpecPlan]) -> SpecPlan:
    """Return a plan under which nothing drafts that one of these stops."""
    *_, last = plans
    lowest = min(reversed(plans), key=lambda plan: (plan.ceiling, plan.reason != KILLED))
    named = [set(plan.proposers) for plan in plans if plan.proposers is not None]
    disabled = {(stop.proposer, stop.traffic_class, stop.tenants): stop for plan in plans for stop in plan.disabled}
    return replace(
        lowest,
        version=last.version,
        proposers=tuple(sorted(set.intersection(*named))) if named else None,
        stopped=frozenset().union(*(plan.stopped for plan in plans)),
        disabled=tuple(disabled.values()),
        killed=frozenset().union(*(plan.killed for plan in plans)),
    )


class AppliedPlan:
    """The plan that an engine applies, with the runs that were stopped under it and earlier ones."""

    def __init__(self, plan: SpecPlan | None = None) -> None:
        self.current = plan or SpecPlan()
        self._stopped = dict.fromkeys(sorted(self.current.stopped))  # oldest first

    def apply(self, plan: SpecPlan) -> None:
        """Replace the plan; runs that were stopped stay stopped."""
        self._stop(plan, sorted(plan.stopped))

    def stop(self, run: str) -> None:
        """Decode the requests of a rollout's run plainly from now on."""
        self._stop(self.current, [run])

    def _stop(self, plan: SpecPlan, runs: list[str]) -> None:
        for run in runs:
            self._stopped.setdefault(run)
        for oldest in list(self._stopped)[:-MAX_STOPPED_RUNS]:
            del self._stopped[oldest]
        self.current = replace(plan, stopped=frozenset(self._stopped))
