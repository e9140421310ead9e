"""Bounds the prompt tokens of a pass in which others decode, by the time they take, and shares them between prompts.

What a prompt token takes is learned from the passes that computed some: the time of the pass, less what its decoding
rows take by the cost curve, as passes without prompts correct it. A token takes longer the more context it reads, so
contexts are grouped by powers of two. Of the last passes the median counts: others use the machine too.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence

from prolepsis.engine.drafting.cost import CostCurve
from prolepsis.engine.request import SequenceState
from prolepsis.engine.rows import Row

LEAST_TOKENS = 8  # prompt tokens that every pass may have: fewer take little less time
MOST_READ = 8
"""Prompts that are read in turns; further ones start only where a pass has room for all of their tokens."""
_OF_PASS = 0.5  # of the time of the decoding rows, which prompts may take in any case
_SHORT = 4  # short passes take this part of the limit
_NEARLY = 1.25  # times what a pass takes with one row
_ALONE_MS = 5000.0
"""Longest time of a pass in which nothing decodes: callers see that it goes on, and an end loses little."""
_LAST = 8  # passes
_CONTEXT = 1024  # tokens of the first context band


class ChunkLimit:
    """The limit of one engine: `max_tokens` is asked before a pass, `observe` called after it."""

    def __init__(self, limit_ms: float, cost: CostCurve) -> None:
        """`limit_ms`: longest time that prompts add to a pass in which others decode; 0: no limit, to any pass."""
        self.limit_ms = limit_ms
        self._cost = cost
        self._decoding: deque[float] = deque((1.0,), maxlen=_LAST)  # measured over predicted time
        self._token_ms: dict[int, deque[float]] = {}  # of a prompt token, by context band

    def max_tokens(self, decoding: Sequence[Row], start: int, most: int, *, is_short: bool = False) -> int:
        """Return how many prompt tokens may join the rows that decode, `most` at most.

        `start`: cached tokens of the prompt that is read. `is_short`: the pass is, also if nothing decodes.
        """
        if not self.limit_ms:
            return most
        limit_ms = max(self.limit_ms, _OF_PASS * self._decoding_ms(decoding)) if decoding else _ALONE_MS
        if is_short:
            limit_ms = self.limit_ms / _SHORT
        token_ms = self.token_ms(start)
        return most if most * token_ms <= limit_ms else min(most, max(LEAST_TOKENS, int(limit_ms / token_ms)))

    def is_short(self, num_rows: int, num_context: int) -> bool:
        """Return whether a pass of so many rows that decode is short, or takes little longer than one of them alone."""
        factor, alone_ms = statistics.median(self._decoding), self._cost.ms(1, num_context // num_rows)
        limit_ms = max(self.limit_ms / _SHORT, _NEARLY * factor * alone_ms)
        return not self.limit_ms or num_rows == 1 or factor * self._cost.ms(num_rows, num_context) <= limit_ms

    def token_ms(self, start: int) -> float:
        """Return the expected milliseconds of a prompt token behind `start` cached ones."""
        if not self._token_ms:
            num_tokens = self._cost.tokens[-1]
            added = self._cost.ms(num_tokens, 0) - self._cost.ms(1, 0)
            return max(0.0, statistics.median(self._decoding) * added / max(1, num_tokens - 1))
        nearest = min(self._token_ms, key=lambda band: abs(band - _band(start)))
        return statistics.median(self._token_ms[nearest])

    def observe(self, rows: Iterable[Row], ms: float) -> None:
        """Learn from a pass that took `ms` milliseconds; a time that cannot be true counts for nothing."""
        decoding, num_tokens, places = [], 0, 0
        for row in rows:
            if row.num_tokens > 1:
                num_tokens += row.num_tokens
                places += row.num_tokens * row.start
            else:
                decoding.append(row)
        if not (math.isfinite(ms) and ms > 0.0):
            return
        if not num_tokens:
            self._decoding.append(ms / self._predicted(decoding))
        elif num_tokens >= LEAST_TOKENS:
            known = self._token_ms.setdefault(_band(places // num_tokens), deque(maxlen=_LAST))
            known.append(max(0.0, ms - self._decoding_ms(decoding)) / num_tokens)

    def _decoding_ms(self, decoding: Sequence[Row]) -> float:
        """Return what the rows take; where there are none, as one token: a pass reads the weights in any case."""
        return statistics.median(self._decoding) * self._predicted(decoding)

    def _predicted(self, decoding: Sequence[Row]) -> float:
        num_tokens = sum(row.num_scheduled_tokens for row in decoding)
        return max(1e-6, self._cost.ms(max(1, num_tokens), sum(row.start for row in decoding)))


def _band(start: int) -> int:
    return (start // _CONTEXT).bit_length()


class ReadingTurns:
    """The order in which prompts share the tokens of passes.

    Every other pass begins with the prompt that has waited longest for its turn, the others with the one whose target
    for the first token is next, or else that has the fewest tokens left: a short prompt does not wait for long ones,
    and a long one gets half of the passes.
    """

    def __init__(self) -> None:
        self._num_passes = 0
        self._last: dict[str, int] = {}  # pass of each prompt's last turn, by key of its sequence

    def order(self, prompts: Sequence[SequenceState], now: float) -> list[SequenceState]:
        """Return the prompts of the next pass, first those of better priority; given by rank, which decides ties."""
        self._num_passes += 1
        self._last = {prompt.key: self._last.get(prompt.key, self._num_passes) for prompt in prompts}
        if self._num_passes % 2 == 0:
            return sorted(
                prompts, key=lambda prompt: (prompt.rank[0], prompt.request.first_token_left(now), prompt.num_pending)
            )
        return sorted(prompts, key=lambda prompt: (prompt.rank[0], self._last[prompt.key]))

    def took(self, prompt: SequenceState) -> None:
        """Count its turn in the pass whose order was asked for last."""
        self._last[prompt.key] = self._num_passes
