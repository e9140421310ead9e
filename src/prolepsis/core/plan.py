"""The one value by which control enters the engine, swapped between two steps."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A proposer that drafts no more for the samples of one traffic class, those in flight included."""

    proposer: str
    traffic_class: str
    probes: int = 0
    """Drafts it may still be asked for, to see how it fares now."""
    probe_round: int = 0
    """A grant of another number is a new one; the same one again, in a later plan, grants nothing more."""


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
    """Runs of rollouts that were taken back: their requests decode plainly, those in flight too. The engine keeps
    them over later plans."""
    left_out: tuple[LeftOut, ...] = ()


PANIC_PLAN = SpecPlan(version=-1, num_speculative_tokens=0, reason="panic")
