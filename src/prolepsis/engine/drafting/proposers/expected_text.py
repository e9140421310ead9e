"""A text that was sent with a request and that the answer is expected to follow: a prediction, or a client's draft."""

from collections.abc import Sequence
from typing import Any
from zlib import crc32

from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.kernel import draft_kernel
from prolepsis.engine.drafting.proposer import SequenceView
from prolepsis.engine.drafting.proposers import suffix_index
from prolepsis.engine.drafting.proposers.suffix_index import NUM_BUCKETS

_NUM_SCOPES = 32  # groups of tenants


class ExpectedText:
    """The text for one sequence, whose tokens follow it from `start` on."""

    def __init__(self, kernel: Any, start: int) -> None:
        self.index = kernel.SequenceIndex(False)
        self.index.follow_given()
        self.start = start
        self.num_given = 0

    def give(self, tokens: Sequence[int]) -> None:
        """Add the next part."""
        self.index.give(tokens)
        self.num_given += len(tokens)


def kernel_for(*, native: bool) -> Any:
    """Return what finds places in texts: the native module, or its reference where there is none or not `native`."""
    return (draft_kernel() if native else None) or suffix_index


def propose(
    kernel: Any,
    name: str,
    texts: Sequence[ExpectedText | None],
    sequences: Sequence[SequenceView],
    limits: Sequence[int],
) -> list[Draft | None]:
    """Return the draft of each sequence that has a text. Buckets are apart by tenant."""
    with_text = [
        (text, sequence, limit) for text, sequence, limit in zip(texts, sequences, limits, strict=True) if text
    ]
    requests = [
        (text.index, sequence.tokens[text.start + len(text.index) :], 0, limit) for text, sequence, limit in with_text
    ]
    found = iter(kernel.propose(None, requests))
    return [
        None if text is None or (nodes := next(found)) is None else _draft(nodes, name, sequence)
        for text, sequence in zip(texts, sequences, strict=True)
    ]


def _draft(nodes: suffix_index.Nodes, name: str, sequence: SequenceView) -> Draft:
    tokens, parents, survival, buckets = nodes
    first = NUM_BUCKETS * scope_of(sequence)
    return Draft(tokens, parents, name, survival, buckets=tuple([first + bucket for bucket in buckets]))


def scope_of(sequence: SequenceView) -> int:
    """Return a number of its tenant for buckets: bad drafts of one client make few others seem bad."""
    return crc32(sequence.tenant.encode()) % _NUM_SCOPES
