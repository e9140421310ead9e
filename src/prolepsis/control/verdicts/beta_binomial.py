"""Evidence against a stated probability, in closed form."""

import math


def log_evidence_against(probability: float, num_successes: int, num_trials: int) -> float:
    """Return the logarithm of Robbins' mixture against "each trial succeeds with `probability`".

    The likelihood averaged over a uniform prior, divided by the likelihood at `probability` in (0, 1):
    B(k + 1, n - k + 1) / (p^k (1 - p)^(n - k)), a martingale that starts at 1 (Robbins, Ann. Math. Stat. 1970; Howard,
    Ramdas, McAuliffe and Sekhon, Ann. Stat. 2021, arXiv 1810.08240, proposition 7). Valid at any time: 1 / alpha is
    ever reached with probability at most alpha.
    """
    failures = num_trials - num_successes
    averaged = math.lgamma(num_successes + 1) + math.lgamma(failures + 1) - math.lgamma(num_trials + 2)
    return averaged - num_successes * math.log(probability) - failures * math.log1p(-probability)
