"""Times between the tokens of one answer, counted as they arrive."""

from bisect import bisect_left
from dataclasses import dataclass, field

BOUNDS_S = (0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.25)
"""Upper bounds of the counts; the last count has none."""


def _zeros() -> list[int]:
    return [0] * (len(BOUNDS_S) + 1)


@dataclass(slots=True)
class TokenIntervals:
    """Several tokens may arrive at once, so there are two counts: of the waits, and of the tokens by their part."""

    waits: list[int] = field(default_factory=_zeros)
    """Waits of the client between two arrivals, by their length."""
    tokens: list[int] = field(default_factory=_zeros)
    """Tokens that arrived, by the wait divided by the number that it brought."""
    seconds: float = 0.0  # the sum of both
    _last: dict[int, float] = field(default_factory=dict)

    def see(self, sample: int, num_tokens: int, now: float) -> None:
        """Count an arrival of tokens of one sample; its first has nothing before it."""
        last = self._last.get(sample)
        if not num_tokens:
            return
        self._last[sample] = now
        if last is None:
            return
        wait = now - last
        self.waits[bisect_left(BOUNDS_S, wait)] += 1
        self.tokens[bisect_left(BOUNDS_S, wait / num_tokens)] += num_tokens
        self.seconds += wait
