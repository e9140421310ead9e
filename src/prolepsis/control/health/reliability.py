"""How reliable a proposer's estimates are: a lower bound of the distance of its distribution from the target's."""

from collections.abc import Sequence

_BINS = 10
_DECAY = 0.99  # of a bin, per draft in it: noise makes about .03 of it
_LEAST = 50.0  # drafts


class Reliability:
    """Decayed counts of first drafted tokens by the chance that the proposer gave them.

    For any event, total variation is at least the difference of the two probabilities of it. With "the first drafted
    token comes" as the event, and by convexity, the mean distance between the next-token distributions of proposer and
    target is at least the mean of |estimate - outcome| over bins of the estimate.
    """

    def __init__(self, bins: Sequence[tuple[float, float, float]] = ()) -> None:
        """`bins`: as kept earlier: drafts, sum of estimates, number right."""
        self._bins = [list(bin_) for bin_ in bins] or [[0.0, 0.0, 0.0] for _ in range(_BINS)]

    @property
    def bins(self) -> tuple[tuple[float, float, float], ...]:
        return tuple((number, estimated, right) for number, estimated, right in self._bins)

    def add(self, estimate: float, *, right: bool) -> None:
        """Count one first token with the chance that the proposer gave it."""
        bin_ = self._bins[min(_BINS - 1, max(0, int(_BINS * estimate)))]
        for i, value in enumerate((1.0, estimate, float(right))):
            bin_[i] = _DECAY * bin_[i] + value

    @property
    def total_variation(self) -> float | None:
        """Mean distance, in [0, 1]; None below fifty drafts."""
        number = sum(bin_[0] for bin_ in self._bins)
        return sum(abs(bin_[1] - bin_[2]) for bin_ in self._bins) / number if number >= _LEAST else None
