"""Bounds of failover."""

from dataclasses import dataclass

from prolepsis.core.continuation import OutsideGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverSettings:
    """Defaults suit engines of one machine."""

    outside_group: OutsideGroup = "refuse"
    max_losses: int = 3
    """Engines that one request may lose and go on: it may be the one that ends them."""
    max_failed_steps: int = 1
    """Of these, losses by a failed step: the engine lives, and gives up after several of them in a row."""
    wait_s: float = 60.0
    """Longest wait of a request for an engine."""
    check_s: float = 0.25
    """Between two looks at the health of engines; one that is not alive at two in a row is lost."""
    max_restarts: int = 5
    """Starts in a row of one engine, each ended within `steady_s`; after them it stays away."""
    steady_s: float = 60.0
    backoff_s: float = 0.5
    """Before the second start in a row; it doubles."""
