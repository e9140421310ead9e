"""Prompt lookup: what followed the last n tokens when they occurred before, in the same prompt and output.

An index per sample maps each n-gram (n = 5 to 2) to where its most recent occurrence continues.
"""

from collections.abc import Sequence

from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.proposer import SampleView
from prolepsis.spec.proposers.ngram_index import NgramIndexes, continuation


class PromptLookup:
    """Proposes a chain copied from the most recent earlier occurrence; the bucket is the match length."""

    name = "prompt_lookup"
    free = True

    def __init__(self, max_match: int = 5, min_match: int = 2) -> None:
        self._indexes = NgramIndexes(tuple(range(max_match, min_match - 1, -1)))

    def propose(self, samples: Sequence[SampleView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._propose(sample, limit) for sample, limit in zip(samples, limits, strict=True)]

    def commit(self, sample: SampleView, num_new: int) -> None:
        """Nothing to do: the index catches up when it is next asked."""

    def forget(self, sample: SampleView) -> None:
        self._indexes.forget(sample)

    def _propose(self, sample: SampleView, limit: int) -> Draft | None:
        start, size = self._indexes.of(sample).find(sample.tokens)
        if size == 0:
            return None
        return chain(continuation(sample.tokens, start, limit), self.name, bucket=size)
