"""The share of a finite population, from members that were drawn at random."""

from bisect import bisect_left
from math import exp, fsum, lgamma


def share_interval(num: int, num_drawn: int, num_right: int, error: float = 0.05) -> tuple[float, float]:
    """Return bounds of the share of right ones among `num`, of which `num_right` of `num_drawn` were right.

    They miss it in at most `error` of all draws: an exact test, inverted, by hypergeometric tails of half of that.
    """
    if not num_drawn:
        return 0.0, 1.0

    def tail(right: int, drawn: range) -> float:
        return fsum(exp(_log_comb(right, k) + _log_comb(num - right, num_drawn - k) - every) for k in drawn)

    every, possible = _log_comb(num, num_drawn), range(num_right, num - num_drawn + num_right + 1)
    up, down = range(num_right, num_drawn + 1), range(num_right + 1)
    low = bisect_left(possible, True, key=lambda right: tail(right, up) > error / 2)
    high = bisect_left(possible, True, key=lambda right: tail(right, down) <= error / 2)
    return possible[low] / num, possible[high - 1] / num


def _log_comb(num: int, k: int) -> float:
    return lgamma(num + 1) - lgamma(k + 1) - lgamma(num - k + 1) if 0 <= k <= num else float("-inf")
