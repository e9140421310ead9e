"""Where a breaker stands."""

from dataclasses import dataclass, field, replace
from typing import Literal, Self

from prolepsis.control.breaker.window import Window
from prolepsis.core.plan import LeftOut
from prolepsis.core.slice_counts import SliceCounts

State = Literal["closed", "open", "half_open", "forced_open", "forced_closed", "metrics_only"]
"""half_open: probed; forced ones are set by hand and stay; metrics_only says when it would open, and does nothing."""
ByHand = Literal["forced_open", "forced_closed", "metrics_only", "closed"]
"""What an operator may set; closed: back to deciding by itself."""


@dataclass(frozen=True, slots=True)
class Breaker:
    """One proposer for one slice. Times in seconds, of one monotonic clock."""

    proposer: str
    slice: str
    state: State = "closed"
    since: float = 0.0
    open_s: float = 0.0
    """How long it was last open; 0: not yet, or so long ago that it does not count."""
    probe_round: int = 0
    seen: SliceCounts = field(default_factory=lambda: SliceCounts("", ""))
    """The last reading."""
    began: SliceCounts = field(default_factory=lambda: SliceCounts("", ""))
    """The reading at which the state began."""
    window: Window = field(default_factory=Window)

    def entered(self, state: State, now: float) -> Self:
        """Return it in `state` from `now` on, with nothing remembered of before."""
        return replace(self, state=state, since=now, began=self.seen, window=Window())

    def left_out(self, probes: int) -> LeftOut | None:
        """Return what a plan has to say of it; `probes`: drafts of a probe round. None: its proposer may draft."""
        if self.state in ("open", "forced_open"):
            return LeftOut(self.proposer, self.slice)
        return LeftOut(self.proposer, self.slice, probes, self.probe_round) if self.state == "half_open" else None
