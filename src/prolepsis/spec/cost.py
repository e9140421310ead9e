"""What a pass of the target costs: profiled at start, kept true while serving.

`ms(rows, context)`: rows are the tokens of the pass, context the cached tokens over all of its sequences.
"""

import json
import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

PROFILE_ROWS = (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, 64)
"""Both sides of the powers of two: compiled and captured forwards pad to shapes that end there, so T has steps."""
PROFILE_CONTEXTS = (64, 512, 2048, 8192)
_CONTEXT_STEP = 256  # tables are kept per so many tokens of context
_MAX_TABLES = 64
_DECAY = 0.98  # of the online correction: about 50 passes
_PRIOR_PASSES = 8.0  # weight of the correction over all rows in that of one band of rows
_REBUILD_EVERY = 32  # passes between two looks at the corrections
_TABLE_ROWS = 64  # that every table has
_ALL = slice(None)


class CostCurve:
    """Milliseconds of a pass: never falling in rows or context, linear between profiled points and beyond them.

    `observe` learns the ratio of measured to predicted time, per band of row counts shrunk to the ratio over all, so
    that drift of the machine and of single bands is followed; `ms` and `table` include it.
    """

    def __init__(
        self,
        rows: Sequence[int],
        contexts: Sequence[int],
        ms: Sequence[Sequence[float]],  # [rows][contexts]
    ) -> None:
        assert [len(line) for line in ms] == [len(contexts)] * len(rows), "a full grid"
        assert _ascends(rows), "profiled rows ascend"
        assert _ascends(contexts), "profiled contexts ascend"
        self.rows = tuple(rows)
        self.contexts = tuple(contexts)
        self.profiled = tuple(tuple(line) for line in ms)
        self._grid = _monotone(self.profiled)
        self._row_slope = statistics.mean(_slope(rows, column) for column in zip(*self._grid, strict=True))
        self._context_slope = statistics.mean(_slope(contexts, line) for line in self._grid)
        self._overall = [_PRIOR_PASSES, _PRIOR_PASSES]  # decayed sums: ratio, weight
        self._bands: dict[int, list[float]] = {}
        self._tables: dict[int, list[float]] = {}
        self._num_observed = 0

    def ms(self, num_rows: int, num_context: int) -> float:
        """Return the expected milliseconds of a pass of `num_rows` tokens, correction included."""
        return self.table(num_rows, num_context)[num_rows]

    def table(self, num_rows: int, num_context: int) -> list[float]:
        """Return a list, indexed by rows up to at least `num_rows`, of milliseconds at about `num_context`."""
        step = (num_context + _CONTEXT_STEP // 2) // _CONTEXT_STEP
        table = self._tables.get(step)
        if table is None or len(table) <= num_rows:
            if len(self._tables) >= _MAX_TABLES:
                self._tables.clear()
            size = max(_TABLE_ROWS, 1 << num_rows.bit_length())
            table = self._tables[step] = self._build(size, step * _CONTEXT_STEP)
        return table

    def about(self, num_rows: int, num_context: int) -> float:
        """Return what `ms` does, without making a table for many rows: that is dear where it is asked for once."""
        if num_rows <= _TABLE_ROWS:
            return self.table(num_rows, num_context)[num_rows]
        return self._predict(num_rows, num_context) * self.correction(num_rows)

    def observe(self, num_rows: int, num_context: int, ms: float) -> None:
        """Learn that a pass took `ms`; outliers beyond 4 times either way are clipped (a compile, a page fault)."""
        predicted = self._predict(num_rows, num_context)
        if predicted <= 0.0 or ms <= 0.0:
            return
        ratio = min(4.0, max(0.25, ms / predicted))
        for sums in (self._overall, self._bands.setdefault(_band(num_rows), [0.0, 0.0])):
            sums[0] = sums[0] * _DECAY + ratio
            sums[1] = sums[1] * _DECAY + 1.0
        self._num_observed += 1
        if self._num_observed % _REBUILD_EVERY == 0:
            self._tables.clear()

    def correction(self, num_rows: int) -> float:
        """Return measured over predicted time for passes of about `num_rows` tokens."""
        overall = self._overall[0] / self._overall[1]
        ratio, weight = self._bands.get(_band(num_rows), (0.0, 0.0))
        return (ratio + _PRIOR_PASSES * overall) / (weight + _PRIOR_PASSES)

    def to_json(self) -> str:
        """Return the profiled points; the online correction is not kept."""
        return json.dumps({"rows": self.rows, "contexts": self.contexts, "ms": self.profiled})

    @classmethod
    def from_json(cls, text: str) -> "CostCurve":
        """Return the curve that `to_json` wrote. Raises `ValueError` for anything else."""
        try:
            data = json.loads(text)
            rows, contexts = [int(r) for r in data["rows"]], [int(c) for c in data["contexts"]]
            return cls(rows, contexts, [[float(x) for x in line] for line in data["ms"]])
        except (KeyError, TypeError, AssertionError) as error:
            raise ValueError(f"not a stored cost curve: {error}") from error

    def _build(self, size: int, context: int) -> list[float]:
        column = self._column(context)
        corrections = [self.correction(1 << band) for band in range(_band(size) + 1)]
        ms = [self._at(column, rows) * corrections[_band(rows)] for rows in range(1, size + 1)]
        return list(accumulate([ms[0], *ms], max))

    def _predict(self, num_rows: int, num_context: int) -> float:
        """Return what the whole column gives, from the two profiled numbers of rows around `num_rows`."""
        first = max(0, min(bisect_left(self.rows, num_rows) - 1, len(self.rows) - 2))
        near = slice(first, first + 2)
        return self._at(self._column(num_context, near), num_rows, near)

    def _column(self, num_context: int, lines: slice = _ALL) -> list[float]:
        """Return the milliseconds of each of these profiled numbers of rows at `num_context`."""
        more = max(0, num_context - self.contexts[-1]) * self._context_slope
        return [_interpolate(self.contexts, line, num_context) + more for line in self._grid[lines]]

    def _at(self, column: Sequence[float], num_rows: int, lines: slice = _ALL) -> float:
        more = max(0, num_rows - self.rows[-1]) * self._row_slope
        return _interpolate(self.rows[lines], column, num_rows) + more


def flat_cost(ms: float = 10.0, ms_per_row: float = 0.1) -> CostCurve:
    """Return a curve for engines that were not profiled: a constant and so much for each row."""
    return CostCurve((1, 64), (0,), ((ms + ms_per_row,), (ms + 64 * ms_per_row,)))


def profile_cost(
    measure: Callable[[int, int], float],  # (rows, context) -> milliseconds of one pass
    rows: Sequence[int] = PROFILE_ROWS,
    contexts: Sequence[int] = PROFILE_CONTEXTS,
    repeats: int = 5,
) -> CostCurve:
    """Return the curve of medians over `repeats` rounds; a round visits every point, so drift touches all alike."""
    points = [(r, c) for c in contexts for r in rows]
    for r, c in points:
        measure(r, c)  # warm: first calls allocate and fault pages in
    sequences: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    for _ in range(repeats):
        for point in points:
            sequences[point].append(measure(*point))
    return CostCurve(rows, contexts, [[statistics.median(sequences[r, c]) for c in contexts] for r in rows])


def _band(num_rows: int) -> int:
    """Return the band of row counts above one power of two and up to the next: forwards that pad, pad to its end."""
    return (num_rows - 1).bit_length()


def _ascends(values: Sequence[int]) -> bool:
    return bool(values) and all(a < b for a, b in pairwise(values))


def _monotone(ms: Sequence[Sequence[float]]) -> list[list[float]]:
    lines = [list(accumulate(line, max)) for line in ms]
    return [list(line) for line in accumulate(lines, lambda a, b: [max(x, y) for x, y in zip(a, b, strict=True)])]


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
