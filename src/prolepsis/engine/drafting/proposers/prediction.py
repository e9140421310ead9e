"""The caller's predicted output as a draft: follows it from the first token, finds its place again after a mismatch.

A pointer says where in the prediction the output continues. A committed token that equals the predicted one advances
it. After a mismatch the last tokens of the output are searched in the prediction, longest n-gram first, nearest
occurrence first (edits keep their order); where nothing is found the token is taken for a substitution, and the draft
continues after it. Predictions are not bound to positions: a match may resume after any amount of new text.
"""

from bisect import bisect_left
from collections.abc import Sequence

from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers.client import scope_of

_SIZES = (6, 4, 3, 2)
_NEAR = 32  # a single token counts as a match only this near to where the pointer stood
_MAX_RUN = 8  # longer runs of matches share a bucket
START_BUCKET = 100
_NGRAM_BUCKET = 50  # + length of the n-gram that re-synchronised
MOST_AT_ONCE = 4096
"""Tokens indexed in one step, which the steps of all requests wait for."""


class _Follower:
    """Position of one sequence's output in its prediction."""

    def __init__(self, prediction: Sequence[int]) -> None:
        self._prediction = tuple(prediction)
        self._places: dict[tuple[int, ...], list[int]] = {}  # n-gram -> where it ends, ascending
        self._num_indexed = 0  # tokens; none before the first mismatch
        self._num_seen = 0
        self.pointer = 0
        self.bucket = START_BUCKET

    def follow(self, output: Sequence[int]) -> None:
        """Move the pointer over the tokens that are new."""
        if 0 < self._num_indexed < len(self._prediction):
            self._index()
        for i in range(self._num_seen, len(output)):
            if self.pointer < len(self._prediction) and self._prediction[self.pointer] == output[i]:
                self.pointer += 1
                self.bucket = min(_MAX_RUN, self.bucket + 1 if self.bucket < _NGRAM_BUCKET else 1)
            else:
                self._resynchronise(output[max(0, i + 1 - _SIZES[0]) : i + 1])
        self._num_seen = len(output)

    def next_tokens(self, limit: int) -> tuple[int, ...]:
        return self._prediction[self.pointer : self.pointer + limit]

    def _resynchronise(self, recent: Sequence[int]) -> None:
        """Find `recent`, the output's last tokens, in the prediction and point behind it."""
        if not self._num_indexed:
            self._index()
        places = self._places
        for size in _SIZES:
            found = places.get(tuple(recent[-size:])) if len(recent) >= size else None
            if found:
                self.pointer, self.bucket = _nearest(found, self.pointer), _NGRAM_BUCKET + size
                return
        single = places.get((recent[-1],))
        if single and abs(_nearest(single, self.pointer) - self.pointer) <= _NEAR:
            self.pointer, self.bucket = _nearest(single, self.pointer), _NGRAM_BUCKET + 1
        else:
            self.pointer, self.bucket = min(self.pointer + 1, len(self._prediction)), 0

    def _index(self) -> None:
        """Index the next part."""
        first, self._num_indexed = self._num_indexed, min(self._num_indexed + MOST_AT_ONCE, len(self._prediction))
        for size in (*_SIZES, 1):
            for end in range(max(size, first + 1), self._num_indexed + 1):
                self._places.setdefault(self._prediction[end - size : end], []).append(end)


class PredictionProposer(Proposer):
    """Proposes the prediction's next tokens.

    Bucket: the start, the tokens matched since, or the n-gram matched; apart by tenant.
    """

    name = "prediction"
    free = True

    def __init__(self) -> None:
        self._followers: dict[str, _Follower] = {}

    def serves(self, sequence: SequenceView) -> bool:
        """Only sequences with a prediction."""
        return bool(sequence.prediction)

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return [self._propose(sequence, limit) for sequence, limit in zip(sequences, limits, strict=True)]

    def forget(self, sequence: SequenceView) -> None:
        self._followers.pop(sequence.key, None)

    def _propose(self, sequence: SequenceView, limit: int) -> Draft | None:
        if not sequence.prediction:
            return None
        follower = self._followers.get(sequence.key)
        if follower is None:
            follower = self._followers[sequence.key] = _Follower(sequence.prediction)
        follower.follow(sequence.tokens[sequence.num_prompt_tokens :])
        tokens = follower.next_tokens(limit)
        bucket = (START_BUCKET + 1) * scope_of(sequence) + follower.bucket
        return chain(tokens, self.name, bucket=bucket) if tokens else None


def _nearest(places: list[int], pointer: int) -> int:
    """Return the first place at or after `pointer`, else the last before it: edits keep their order."""
    i = bisect_left(places, pointer)
    return places[i] if i < len(places) else places[-1]
