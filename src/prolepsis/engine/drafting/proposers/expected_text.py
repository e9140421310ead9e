"""A text that was sent with a request and that the answer is expected to follow: a prediction, or a client's draft.

It is followed from its first token, and found again after a mismatch. It is not bound to positions: a match may resume
after any amount of new text (`followed`), and anywhere.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any
from zlib import crc32

from prolepsis.core.config import CLIENT
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from prolepsis.engine.drafting.proposers import suffix_index
from prolepsis.engine.drafting.proposers.suffix_index import NUM_BUCKETS
from prolepsis.engine.native.proposing import draft_kernel

MOST_AT_ONCE = 4096  # tokens indexed in one step, which the steps of all requests wait for
_NUM_SCOPES = 32  # groups of tenants


class ExpectedText:
    """The text for one sequence, whose tokens follow it from `start` on."""

    def __init__(self, kernel: Any, tokens: Sequence[int], start: int) -> None:
        self.index = kernel.SequenceIndex(False)
        self.index.follow_given()
        self.tokens = tokens
        self.start = start
        self.num_given = 0


def kernel_for(*, native: bool) -> Any:
    """Return what finds places in texts: the native module, or its reference where there is none or not `native`."""
    return (draft_kernel() if native else None) or suffix_index


def draft_of(proposer: str, nodes: suffix_index.Nodes, sequence: SequenceView) -> Draft:
    """Return the draft of nodes, with buckets by tenant: bad drafts of one client make few others seem bad."""
    tokens, parents, survival, buckets = nodes
    first = NUM_BUCKETS * (crc32(sequence.tenant.encode()) % _NUM_SCOPES)
    return Draft(tokens, parents, proposer, survival, buckets=tuple([first + bucket for bucket in buckets]))


class ExpectedTextProposer(Proposer):
    """Proposes trees of where the text of a sequence may go on."""

    free = True
    by_tenant = True

    def __init__(self, *, native: bool = True) -> None:
        self._kernel = kernel_for(native=native)
        self._texts: dict[str, ExpectedText] = {}

    @abstractmethod
    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        """Return the text of a sequence, the same object while it stands, and the place of its first token, or None."""

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        texts = list(map(self._text, sequences))
        requests = [
            (text.index, sequence.tokens[text.start + len(text.index) :], 0, limit)
            for text, sequence, limit in zip(texts, sequences, limits, strict=True)
            if text is not None
        ]
        proposed = iter(self._kernel.propose(None, requests))
        nodes = [next(proposed) if text is not None else None for text in texts]
        return [
            draft_of(self.name, each, sequence) if each is not None else None
            for each, sequence in zip(nodes, sequences, strict=True)
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
        if text.num_given < len(tokens):
            text.index.give(tokens[text.num_given : text.num_given + MOST_AT_ONCE])
            text.num_given += MOST_AT_ONCE
        return text


class PredictionProposer(ExpectedTextProposer):
    """Proposes from the caller's prediction, or from what calls of the request's tools look like."""

    name = "prediction"

    def serves(self, sequence: SequenceView) -> bool:
        return bool(sequence.prediction)

    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        return (sequence.prediction, sequence.num_prompt_tokens) if sequence.prediction else None


class ClientProposer(ExpectedTextProposer):
    """Proposes from the draft that a sequence's client sent while it is answered: its part after the output so far.

    It arrives at any time and is never waited for. The output may have gone on meanwhile, and may leave the draft. One
    that the output has not come to drafts nothing.
    """

    name = CLIENT

    def serves(self, sequence: SequenceView) -> bool:
        return sequence.client_draft is not None

    def expected(self, sequence: SequenceView) -> tuple[Sequence[int], int] | None:
        draft = sequence.client_draft
        if draft is None or len(sequence.tokens) < sequence.num_prompt_tokens + draft.position:
            return None
        return draft.token_ids, sequence.num_prompt_tokens + draft.position
