"""Predicts what a pass of the target costs, as profiled at start; how wrong that is, `engine.drafting.worth` learns.

`ms(tokens, context)`: the tokens that a pass computes, and the cached tokens over all of its sequences.
"""

import json
import math
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

PROFILE_TOKENS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)
"""Both sides of the powers of two: compiled and captured forwards pad to shapes that end there, so T has steps."""
PROFILE_CONTEXTS = (64, 512, 2048, 8192)
_CONTEXT_STEP = 256  # tables are kept per so many tokens of context
_MAX_TABLES = 64
_TABLE_TOKENS = 64  # that every table has
_MOST_ROUNDS = 4
_SETTLED = 0.95  # a round that leaves so much of the sum of its points found nothing new
_POINT_MS = 500.0
"""Passes that together take this long are enough for a point: long passes are disturbed less, and delay the start."""
_LOOKED_AT_ONCE_MS = 20_000.0
"""Where first calls together take longer, a long pass is called once: a busy machine held up its start for minutes."""
_ALL = slice(None)


class CostCurve:
    """Milliseconds of a pass: never falling in tokens or context, linear between profiled points and beyond them."""

    def __init__(
        self,
        tokens: Sequence[int],
        contexts: Sequence[int],
        ms: Sequence[Sequence[float]],  # [tokens][contexts]
    ) -> None:
        assert [len(line) for line in ms] == [len(contexts)] * len(tokens), "a full grid"
        assert _ascends(tokens), "profiled tokens ascend"
        assert _ascends(contexts), "profiled contexts ascend"
        assert all(0.0 < value < math.inf for line in ms for value in line), "profiled milliseconds are above 0"
        self.tokens = tuple(tokens)
        self.contexts = tuple(contexts)
        self.profiled = tuple(tuple(line) for line in ms)
        lines = [list(accumulate(line, max)) for line in self.profiled]
        self._grid = [
            list(line) for line in accumulate(lines, lambda a, b: [max(x, y) for x, y in zip(a, b, strict=True)])
        ]
        self._token_slope = statistics.mean(_slope(tokens, column) for column in zip(*self._grid, strict=True))
        self._context_slope = statistics.mean(_slope(contexts, line) for line in self._grid)
        self._tables: dict[int, list[float]] = {}

    def ms(self, num_tokens: int, num_context: int) -> float:
        """Return the expected milliseconds of a pass of `num_tokens` tokens.

        For many tokens no table is made, which is expensive for a single use; the context is rounded as for tables, so
        that more tokens never seem to take less.
        """
        if num_tokens <= _TABLE_TOKENS:
            return self.table(num_tokens, num_context)[num_tokens]
        first = max(0, min(bisect_left(self.tokens, num_tokens) - 1, len(self.tokens) - 2))
        near = slice(first, first + 2)
        return self._at(self._column(_rounded(num_context) * _CONTEXT_STEP, near), num_tokens, near)

    def table(self, num_tokens: int, num_context: int) -> list[float]:
        """Return a list, indexed by tokens up to at least `num_tokens`, of milliseconds at about `num_context`."""
        step = _rounded(num_context)
        table = self._tables.get(step)
        if table is None or len(table) <= num_tokens:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            size = max(_TABLE_TOKENS, 1 << num_tokens.bit_length())
            column = self._column(step * _CONTEXT_STEP)
            ms = [self._at(column, tokens) for tokens in range(1, size + 1)]
            table = self._tables[step] = list(accumulate([ms[0], *ms], max))
        return table

    def to_json(self) -> str:
        return json.dumps({"tokens": self.tokens, "contexts": self.contexts, "ms": self.profiled})

    @classmethod
    def from_json(cls, text: str) -> "CostCurve":
        """Return the curve that `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            data = json.loads(text)
            tokens, contexts = [int(n) for n in data["tokens"]], [int(c) for c in data["contexts"]]
            return cls(tokens, contexts, [[float(x) for x in line] for line in data["ms"]])
        except (KeyError, TypeError, AssertionError) as error:
            raise ValueError(f"not a stored cost curve: {error}") from error

    def _column(self, num_context: int, lines: slice = _ALL) -> list[float]:
        """Return the milliseconds of each of these profiled numbers of tokens at `num_context`."""
        more = max(0, num_context - self.contexts[-1]) * self._context_slope
        return [_interpolate(self.contexts, line, num_context) + more for line in self._grid[lines]]

    def _at(self, column: Sequence[float], num_tokens: int, lines: slice = _ALL) -> float:
        more = max(0, num_tokens - self.tokens[-1]) * self._token_slope
        return _interpolate(self.tokens[lines], column, num_tokens) + more


def flat_cost(ms: float = 10.0, ms_per_token: float = 0.1) -> CostCurve:
    """Return a curve for engines that were not profiled: a constant and an amount per token."""
    return CostCurve((1, 64), (0,), ((ms + ms_per_token,), (ms + 64 * ms_per_token,)))


def profile_cost(
    measure: Callable[[int, int], float],  # (tokens, context) -> milliseconds of one pass
    tokens: Sequence[int] = PROFILE_TOKENS,
    contexts: Sequence[int] = PROFILE_CONTEXTS,
    repeats: int = 5,
) -> CostCurve:
    """Return the curve of the least of `repeats` rounds: what else uses the machine only ever adds to a time.

    A round visits every point, so that drift touches all alike. While rounds still find much less, as they do on a busy
    machine, more follow: up to `_MOST_ROUNDS` times as many. Rounds after the first leave out a point whose passes, the
    first call included, take `_POINT_MS` by the least of them; so does the first round after `_LOOKED_AT_ONCE_MS`.
    """
    points = [(n, c) for c in contexts for n in tokens]
    least = {point: measure(*point) for point in points}  # first calls allocate and fault pages in
    is_quick = sum(least.values()) < _LOOKED_AT_ONCE_MS
    for done in range(1, _MOST_ROUNDS * repeats + 1):
        visited = [point for point in points if (done == 1 and is_quick) or done * least[point] < _POINT_MS]
        before = sum(least[point] for point in visited)
        for point in visited:
            least[point] = min(least[point], measure(*point))
        if done >= repeats and sum(least[point] for point in visited) >= _SETTLED * before:
            break
    return CostCurve(tokens, contexts, [[least[n, c] for c in contexts] for n in tokens])


def _rounded(num_context: int) -> int:
    return (num_context + _CONTEXT_STEP // 2) // _CONTEXT_STEP


def _ascends(values: Sequence[int]) -> bool:
    return bool(values) and all(a < b for a, b in pairwise(values))


def _slope(knots: Sequence[int], values: Sequence[float]) -> float:
    """Return the slope of the chord from first to last point: noise of the last two is not extrapolated."""
    return (values[-1] - values[0]) / (knots[-1] - knots[0]) if len(knots) > 1 else 0.0


def _interpolate(knots: Sequence[int], values: Sequence[float], x: float) -> float:
    """Return the value at x: linear between knots, level outside of them."""
    if x <= knots[0]:
        return values[0]
    if x >= knots[-1]:
        return values[-1]
    i = bisect_left(knots, x)
    share = (x - knots[i - 1]) / (knots[i] - knots[i - 1])
    return values[i - 1] + share * (values[i] - values[i - 1])
