"""The one value by which control enters the engine, swapped between two steps."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SpecPlan:
    """Which proposers may draft and how far; `num_speculative_tokens` 0 is plain decoding everywhere."""

    version: int = 0
    num_speculative_tokens: int = 16
    proposers: tuple[str, ...] | None = None
    """None: every proposer the engine has."""
    fixed_depth: int | None = None
    """Draft exactly this many tokens where possible instead of letting the window decide (benchmarks, tests)."""
    reason: str = "default"
    stopped: frozenset[str] = frozenset()
    """Slices that were rolled back: their requests decode plainly, those in flight too. The engine keeps them over
    later plans."""


PANIC_PLAN = SpecPlan(version=-1, num_speculative_tokens=0, reason="panic")
