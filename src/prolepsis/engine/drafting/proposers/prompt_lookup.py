"""Prompt lookup: drafts the tokens that followed the last n-gram earlier in the same prompt and output."""

from collections import defaultdict
from collections.abc import Sequence

from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView


class NgramIndex:
    """Most recent continuation of each n-gram of one sequence's tokens."""

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._num_indexed = 0
        self._continues: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Index the tokens that are new; an n-gram counts once it has a continuation."""
        continues = self._continues
        for size in self._sizes:
            for i in range(max(self._num_indexed, size), len(tokens)):
                continues[tuple(tokens[i - size : i])] = i
        self._num_indexed = len(tokens)

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return where the longest matching suffix last continued and its length; length 0 for no match."""
        for size in self._sizes:
            if size < len(tokens):
                start = self._continues.get(tuple(tokens[-size:]))
                if start is not None:
                    return start, size
        return 0, 0


class NgramIndexes:
    """An index per sequence, built when it is first asked for, so a sequence that never speculates costs nothing.

    `sizes` are the lengths n of the n-grams, longest first.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._indexes = defaultdict[str, NgramIndex](lambda: NgramIndex(sizes))

    def of(self, sequence: SequenceView) -> NgramIndex:
        """Return the sequence's index, brought up to its last token."""
        index = self._indexes[sequence.key]
        index.extend(sequence.tokens)
        return index

    def forget(self, sequence: SequenceView) -> None:
        self._indexes.pop(sequence.key, None)


def continuation(tokens: Sequence[int], start: int, limit: int) -> list[int]:
    """Return `limit` tokens from `start` on; past the end they repeat, as a loop in the text does."""
    copied = list(tokens[start : start + limit])
    if len(copied) < limit:
        copied = (copied * (limit // len(copied) + 1))[:limit]
    return copied


class PromptLookupProposer(Proposer):
    """Proposes a chain copied from the most recent earlier occurrence; the bucket is the match length."""

    name = "prompt_lookup"
    free = True

    def __init__(self, max_match: int = 5, min_match: int = 2) -> None:
        self._indexes = NgramIndexes(tuple(range(max_match, min_match - 1, -1)))

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        drafts: list[Draft | None] = []
        for sequence, limit in zip(sequences, limits, strict=True):
            start, size = self._indexes.of(sequence).find(sequence.tokens)
            copied = continuation(sequence.tokens, start, limit) if size else []
            drafts.append(chain(tuple(copied), self.name, bucket=size) if size else None)
        return drafts

    def forget(self, sequence: SequenceView) -> None:
        self._indexes.forget(sequence)
