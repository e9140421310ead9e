"""Drafts the tokens that a sequence's grammar forces, and then the tokens that followed the same text before.

A forced token is the only one its mask allows, so it is nearly always accepted; it costs a row of a pass instead of a
pass. Where the forced run ends, the last tokens of output and run are looked up in the sequence's own text.
"""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from prolepsis.engine.drafting.candidate import FORCED_RATE
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.prompt_lookup import NgramIndexes, continuation

_SIZES = (5, 4, 3, 2)
_FORCED_BUCKET = 0  # those behind the run: the length of the match
_FOUND_PRIOR = 0.4


class GrammarProposer(Proposer):
    """Proposes chains for sequences with a grammar, where it forces a token."""

    name = "grammar"
    free = True

    def __init__(self) -> None:
        self._indexes = NgramIndexes(_SIZES)

    def serves(self, sequence: SequenceView) -> bool:
        return sequence.matcher is not None

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._propose(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def forget(self, sequence: SequenceView) -> None:
        self._indexes.forget(sequence)

    def _propose(self, sequence: SequenceView, limit: int) -> Draft | None:
        forced = sequence.matcher.forced()[:limit] if sequence.matcher is not None else ()
        if not forced:
            return None
        index, left = self._indexes.of(sequence), limit - len(forced)
        start, size = index.find([*sequence.tokens[-_SIZES[0] :], *forced]) if left > 0 else (0, 0)
        copied = continuation(sequence.tokens, start, left) if size else []  # what followed the end of `forced` earlier
        tokens = (*forced, *copied)
        rates = [FORCED_RATE] * len(forced) + [_FOUND_PRIOR] * len(copied)
        buckets = (_FORCED_BUCKET,) * len(forced) + (size,) * len(copied)
        parents = tuple(range(-1, len(tokens) - 1))
        return Draft(tokens, parents, self.name, tuple(accumulate(rates, mul)), _FORCED_BUCKET, buckets)
