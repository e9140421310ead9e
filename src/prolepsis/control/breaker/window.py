"""What a breaker remembers of how its proposer fared: sums of the counts since, older ones fading."""

from dataclasses import dataclass
from math import sqrt
from typing import Self

from prolepsis.core.slice_counts import SliceCounts


@dataclass(frozen=True, slots=True)
class Window:
    """Weights in place of counts; see `SliceCounts` for what each is."""

    judged: float = 0.0
    right: float = 0.0
    rounds: float = 0.0
    spent: float = 0.0
    gained: float = 0.0
    gained_squared: float = 0.0

    def add(self, before: SliceCounts, after: SliceCounts, half_life: float) -> Self:
        """Return the window after another reading, of which `before` is the part that it has seen."""
        num_judged, num_rounds = after.num_judged - before.num_judged, after.num_rounds - before.num_rounds
        by_judged, by_rounds = 0.5 ** (num_judged / half_life), 0.5 ** (num_rounds / half_life)
        return type(self)(
            self.judged * by_judged + num_judged,
            self.right * by_judged + after.num_right - before.num_right,
            self.rounds * by_rounds + num_rounds,
            self.spent * by_rounds + after.spent - before.spent,
            self.gained * by_rounds + after.gained - before.gained,
            self.gained_squared * by_rounds + after.gained_squared - before.gained_squared,
        )

    @property
    def acceptance(self) -> float | None:
        """Share of judged drafts whose first token was right; None before any was."""
        return min(1.0, self.right / self.judged) if self.judged else None

    def highest_acceptance(self, sureness: float) -> float:
        """Return the most that it can be, by so many standard errors (Wilson's score interval, 1927)."""
        if not self.judged:
            return 1.0
        share, square = min(1.0, self.right / self.judged), sureness * sureness
        spread = sureness * sqrt(share * (1.0 - share) / self.judged + square / (4.0 * self.judged**2))
        return (share + square / (2.0 * self.judged) + spread) / (1.0 + square / self.judged)

    def most_gained(self, sureness: float) -> float:
        """Return the most that was to be expected of these rounds, by so many standard errors of what they gained."""
        return self.gained + sureness * sqrt(self.gained_squared + 1.0)
