"""Tokens that the sample's grammar forces, for free, and behind them what followed the same tokens before.

A forced token is the only one its mask allows, so it is nearly always accepted; it costs a row of a pass instead of a
pass. Where the forced run ends, the last tokens of output and run are looked up in the sample's own text.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from prolepsis.spec.candidate import FORCED_RATE
from prolepsis.spec.draft import Draft
from prolepsis.spec.proposer import SampleView
from prolepsis.spec.proposers.prompt_lookup import NgramIndexes, continuation

_SIZES = (5, 4, 3, 2)
_FORCED_BUCKET = 0  # those behind the run: the length of the match
_FOUND_PRIOR = 0.4


class Grammar:
    """Proposes chains for samples with a grammar, where it forces a token."""

    name = "grammar"
    free = True

    def __init__(self) -> None:
        self._indexes = NgramIndexes(_SIZES)

    def serves(self, sample: SampleView) -> bool:
        """Only samples with a grammar (`spec.proposer.Selective`)."""
        return sample.matcher is not None

    def propose(self, samples: Sequence[SampleView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._propose(sample, limit) for sample, limit in zip(samples, limits, strict=True)]

    def commit(self, sample: SampleView, num_new: int) -> None:
        """Nothing to do: the matcher knows the sample's tokens, the index catches up when it is next asked."""

    def forget(self, sample: SampleView) -> None:
        self._indexes.forget(sample)

    def _propose(self, sample: SampleView, limit: int) -> Draft | None:
        forced = sample.matcher.forced()[:limit] if sample.matcher is not None else ()
        if not forced:
            return None
        found, size = self._find(sample, forced, limit - len(forced))
        tokens = forced + found
        rates = [FORCED_RATE] * len(forced) + [_FOUND_PRIOR] * len(found)
        buckets = (_FORCED_BUCKET,) * len(forced) + (size,) * len(found)
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft(tokens, parents, self.name, tuple(accumulate(rates, mul)), _FORCED_BUCKET, buckets)

    def _find(self, sample: SampleView, forced: tuple[int, ...], limit: int) -> tuple[tuple[int, ...], int]:
        """Return what followed the end of `forced` earlier, and the length of the match."""
        index = self._indexes.of(sample)
        if limit <= 0:
            return (), 0
        start, size = index.find([*sample.tokens[-_SIZES[0] :], *forced])
        return (continuation(sample.tokens, start, limit), size) if size else ((), 0)
