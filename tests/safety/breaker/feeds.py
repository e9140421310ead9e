"""A proposer's counts as an engine would read them out, and a breaker that watches them by a clock set by hand."""

from dataclasses import dataclass, field, replace
from math import inf

from prolepsis.core.stats import TrafficClassCounts
from prolepsis.safety.breaker import Breaker, BreakerEvent, BreakerSettings, ByHand, set_by_hand, step

SETTINGS = BreakerSettings()


@dataclass
class Watched:
    settings: BreakerSettings = SETTINGS
    now: float = 100.0
    counts: TrafficClassCounts = field(default_factory=lambda: TrafficClassCounts("suffix", "chat"))
    breaker: Breaker = field(default_factory=lambda: Breaker("suffix", "chat"))
    events: list[BreakerEvent] = field(default_factory=list)

    def look(self, seconds: float = 0.2) -> list[BreakerEvent]:
        """Let time pass and read the counts; return what happened."""
        self.now += seconds
        self.breaker, told = step(self.breaker, self.counts, self.now, self.settings)
        self.events += told
        return list(told)

    def draft(self, number: int, acceptance: float, *, cost: float = 0.2, accepted: float = 0.5) -> list[BreakerEvent]:
        """Judge and verify up to `number` drafts, looking after each ten, until something happens.

        `cost` and `accepted`: tokens a draft.
        """
        for first in range(0, number, 10):
            size = min(10, number - first)
            self.add(size, round(size * acceptance), cost=size * cost, accepted=size * accepted)
            if told := self.look():
                return told
        return []

    def add(self, judged: int, right: int, *, cost: float = 0.0, accepted: float = 0.0) -> None:
        c = self.counts
        self.counts = replace(
            c,
            num_asked=c.num_asked + judged,
            num_judged=c.num_judged + judged,
            num_right=c.num_right + right,
            num_rounds=c.num_rounds + judged,
            spent=c.spent + cost,
            gained=c.gained + accepted,
            gained_squared=c.gained_squared + accepted,
            errors_in_row=0,
            late_in_row=0,
        )

    def fail(self, times: int = 1) -> None:
        c = self.counts
        self.counts = replace(c, num_errors=c.num_errors + times, errors_in_row=c.errors_in_row + times)

    def lag(self, times: int = 1) -> None:
        c = self.counts
        asked, late, row = c.num_asked + times, c.num_late + times, c.late_in_row + times
        self.counts = replace(c, num_asked=asked, num_late=late, late_in_row=row)

    def set(self, to: ByHand) -> list[BreakerEvent]:
        self.breaker, told = set_by_hand(self.breaker, to, self.now, "kim")
        return list(told)


def patient() -> BreakerSettings:
    """Settings of a breaker that acceptance alone can open."""
    return BreakerSettings(max_cost=inf, cost_to_close=inf)
