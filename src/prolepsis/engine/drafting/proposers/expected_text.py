"""A text that was sent with a request and that the answer is expected to follow: a prediction, or a client's draft."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.kernel import draft_kernel
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers import suffix_index
from prolepsis.engine.drafting.proposers.suffix_index import NUM_BUCKETS

MOST_AT_ONCE = 4096
"""Tokens indexed in one step, which the steps of all requests wait for."""
_NUM_SCOPES = 32  # groups of tenants


class ExpectedText:
    """The text for one sequence, whose tokens follow it from `start` on."""

    def __init__(self, kernel: Any, tokens: Sequence[int], start: int) -> None:
        self.index = kernel.SequenceIndex(False)
        self.index.follow_given()
        self.tokens = tokens
        self.start = start
        self._num_given = 0

    def give_next(self) -> None:
        """Index the next part, if there is one."""
        if self._num_given < len(self.tokens):
            end = self._num_given + MOST_AT_ONCE
            self.index.give(self.tokens[self._num_given : end])
            self._num_given = end


def kernel_for(*, native: bool) -> Any:
    """Return what finds places in texts: the native module, or its reference where there is none or not `native`."""
    return (draft_kernel() if native else None) or suffix_index


class ExpectedTextProposer(Proposer):
    """Proposes trees of where the text of a sequence may go on. Buckets are apart by tenant."""

    free = True

    def __init__(self, *, native: bool = True) -> None:
        self._kernel = kernel_for(native=native)
        self._texts: dict[str, ExpectedText] = {}

    @abstractmethod
    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        """Return the text of a sequence, the same object while it stands, and the place of its first token, or None."""

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        texts = [self._text(sequence) for sequence in sequences]
        requests = [
            (text.index, sequence.tokens[text.start + len(text.index) :], 0, limit)
            for text, sequence, limit in zip(texts, sequences, limits, strict=True)
            if text is not None
        ]
        found = iter(self._kernel.propose(None, requests))
        return [
            None if text is None or (nodes := next(found)) is None else self._draft(nodes, sequence)
            for text, sequence in zip(texts, sequences, strict=True)
        ]

    def forget(self, sequence: SequenceView) -> None:
        self._texts.pop(sequence.key, None)

    def _text(self, sequence: SequenceView) -> ExpectedText | None:
        given = self.expected(sequence)
        if given is None:
            return None
        tokens, start = given
        text = self._texts.get(sequence.key)
        if text is None or text.tokens is not tokens or text.start != start:
            text = self._texts[sequence.key] = ExpectedText(self._kernel, tokens, start)
        text.give_next()
        return text

    def _draft(self, nodes: suffix_index.Nodes, sequence: SequenceView) -> Draft:
        tokens, parents, survival, buckets = nodes
        first = NUM_BUCKETS * scope_of(sequence)
        return Draft(tokens, parents, self.name, survival, buckets=tuple([first + bucket for bucket in buckets]))


def scope_of(sequence: SequenceView) -> int:
    """Return a number of its tenant for buckets: bad drafts of one client make few others seem bad."""
    return crc32(sequence.tenant.encode()) % _NUM_SCOPES
