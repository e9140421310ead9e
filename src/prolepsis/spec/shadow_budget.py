"""How much of an engine's time drafts may take that nobody verifies."""

from math import inf

_LONGEST_S = 0.002  # of credit: after a quiet time, not more than this is spent at once
_WEIGHT = 0.1  # of the last step in the mean


class ShadowBudget:
    """Lets drafting in shadow have `share` of the passes' time, as a bucket that passes fill and drafts empty.

    Which samples draft follows from time alone, never from what they or their drafts are: no bias.
    """

    def __init__(self, share: float = inf) -> None:
        """`share` inf: whatever it takes."""
        self._share = share
        self._credit_s = 0.0
        self._each_s = 0.0
        self._turn = 0

    def earn(self, pass_s: float) -> None:
        """A pass took so many seconds."""
        self._credit_s = min(_LONGEST_S, self._credit_s + self._share * pass_s)

    def draw(self, due: list[int]) -> list[int]:
        """Return which of the samples `due` may draft now: all of them, or as many as there is credit for, by turns."""
        if self._share == inf or not due:
            return due
        if self._credit_s <= 0.0:
            return []
        number = max(1, int(self._credit_s / self._each_s)) if self._each_s else 1
        if number >= len(due):
            return due
        self._turn += number
        return sorted(due[(self._turn + i) % len(due)] for i in range(number))

    def spend(self, seconds: float, num_samples: int) -> None:
        """Drafting for so many samples took so long."""
        each = seconds / num_samples
        self._each_s = each if self._each_s == 0.0 else (1.0 - _WEIGHT) * self._each_s + _WEIGHT * each
        self._credit_s -= seconds
