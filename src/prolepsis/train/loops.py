"""Where a text begins to go round in circles, as small models' greedy texts do."""

from collections.abc import Sequence

MAX_PERIOD = 80
MIN_REPEATS = 3
MIN_REPEATED = 24
"""Tokens that repeat what stands one period before: fewer are a refrain, not a loop."""


def loop_end(tokens: Sequence[int]) -> int | None:
    """Return the number of tokens to keep of a text whose end repeats itself, or None.

    A loop is a tail of at least `MIN_REPEATS` equal stretches; one repetition of it is kept, as the target does loop.
    """
    for period in range(1, min(MAX_PERIOD, len(tokens) // MIN_REPEATS) + 1):
        same = 0
        while same + period < len(tokens) and tokens[-1 - same] == tokens[-1 - same - period]:
            same += 1
        if same >= max((MIN_REPEATS - 1) * period, MIN_REPEATED):
            first = len(tokens) - same - period
            return min(len(tokens), first + max(2 * period, MIN_REPEATED))
    return None
