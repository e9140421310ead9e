"""When a breaker opens, how long it stays open, and what it takes to close."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerSettings:
    """Thresholds to close are stricter than those to open: between the two nothing changes (hysteresis)."""

    min_acceptance: float = 0.1
    """Opens where the first drafted token is surely right less often."""
    acceptance_to_close: float = 0.15
    min_judged: int = 64
    """Judged drafts before acceptance says anything."""
    max_cost: float = 1.25
    """Opens where drafts surely cost more than this many tokens for each that they bring."""
    cost_to_close: float = 1.0
    min_rounds: int = 64
    """Verified drafts before cost says anything."""
    half_life: float = 256.0
    """Judged drafts, or rounds, after which what was seen counts half."""
    sureness: float = 3.0
    """Standard errors that a threshold is from what is seen: breakers look all the time."""
    errors_in_row: int = 5
    late_in_row: int = 3
    open_s: float = 10.0
    """Of the first time that it is open; doubles with every probe round that fails."""
    longest_open_s: float = 600.0
    calm_s: float = 300.0
    """After so long closed, the next time it opens is a first time again."""
    probes: int = 256
    """Drafts asked for in a probe round, at most."""
    min_probed: int = 24
    """Of them judged before the round is decided."""

    def __post_init__(self) -> None:
        assert 0.0 <= self.min_acceptance <= self.acceptance_to_close <= 1.0, (
            "closing asks for more than staying closed"
        )
        assert 0.0 < self.cost_to_close <= self.max_cost, "closing asks for more than staying closed"
        assert 0 < self.min_probed <= self.probes, "a probe round can be decided"
        assert 0.0 < self.open_s <= self.longest_open_s, "back-off grows"
