"""A token bucket from which an amount is taken before it is known, and what was not used is given back."""

from dataclasses import dataclass

PERIOD_S = 60.0


@dataclass(slots=True)
class TokenBucket:
    """Holds at most a minute's allowance and fills evenly; `held` is below 0 while more was used than reserved.

    `limits` has no bucket to give back to: its counters only grow within a window, so a reservation of prompt plus
    max_tokens would count in full however short the answer was. Times in seconds of one clock.
    """

    per_minute: float
    held: float
    filled_at: float

    def level(self, now: float) -> float:
        """Return what is left; a clock that went back adds nothing."""
        came = max(0.0, now - self.filled_at) * self.per_minute / PERIOD_S
        self.held, self.filled_at = min(self.per_minute, self.held + came), now
        return self.held

    def wait_s(self, amount: float, now: float) -> float:
        """Return the seconds until `amount` is there; one over the allowance waits for all of the allowance."""
        missing = min(amount, self.per_minute) - self.level(now)
        return max(0.0, missing) * PERIOD_S / self.per_minute

    def take(self, amount: float, now: float) -> None:
        self.held = self.level(now) - amount

    def give(self, amount: float, now: float) -> None:
        self.held = min(self.per_minute, self.level(now) + amount)

    def reset_s(self, now: float) -> float:
        """Return the seconds until it is full again."""
        return (self.per_minute - self.level(now)) * PERIOD_S / self.per_minute
