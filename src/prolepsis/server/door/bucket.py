"""A token bucket from which an amount is taken before it is known, and what was not used is given back."""

from dataclasses import dataclass

PERIOD_S = 60.0


@dataclass(slots=True)
class Bucket:
    """Holds at most a minute's allowance and fills evenly; `level` is below 0 while more was used than reserved.

    `limits` has no bucket to give back to: its counters only grow within a window, so a reservation of prompt plus
    max_tokens would count in full however short the answer was.
    """

    per_minute: int
    level: float
    filled_at: float

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is there; one over the allowance waits for all of the allowance."""
        self._fill(now)
        missing = min(amount, self.per_minute) - self.level
        return max(0.0, missing) * PERIOD_S / self.per_minute

    def take(self, amount: float) -> None:
        self.level -= amount

    def give(self, amount: float, now: float) -> None:
        self._fill(now)
        self.level = min(self.per_minute, self.level + amount)

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again."""
        self._fill(now)
        return (self.per_minute - self.level) * PERIOD_S / self.per_minute

    def _fill(self, now: float) -> None:
        rate = self.per_minute / PERIOD_S
        self.level = min(self.per_minute, self.level + (now - self.filled_at) * rate)
        self.filled_at = now
