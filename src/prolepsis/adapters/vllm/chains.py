"""Proposers for targets that verify chains only: of a tree, its principal chain is left."""

from collections.abc import Sequence

from prolepsis.core.messages import SetCorpora
from prolepsis.core.stats import ProposerMemory
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposer import Proposer, SequenceView

_NODES = 2
"""Nodes that a tree may have for each token of the chain: some are on its branches."""


class ChainProposer(Proposer):
    """Drafts what another free proposer does, without branches."""

    free = True

    def __init__(self, proposer: Proposer) -> None:
        assert proposer.free, "costly proposers draft with the target's own K/V"
        self.name = proposer.name
        self._proposer = proposer

    def serves(self, sequence: SequenceView) -> bool:
        return self._proposer.serves(sequence)

    def forget(self, sequence: SequenceView) -> None:
        self._proposer.forget(sequence)

    def take_corpora(self, message: SetCorpora) -> None:
        self._proposer.take_corpora(message)

    def close(self) -> None:
        self._proposer.close()

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        drafts = self._proposer.propose(sequences, [_NODES * limit for limit in limits])
        return [None if draft is None else chain_of(draft, limit) for draft, limit in zip(drafts, limits, strict=True)]

    def memory(self) -> ProposerMemory:
        return self._proposer.memory()


def chain_of(draft: Draft, limit: int) -> Draft:
    """Return the principal chain of a draft, of at most `limit` tokens: it is in front."""
    size = 0
    while size < min(limit, len(draft.tokens)) and draft.parents[size] == size - 1:
        size += 1
    return draft.cut(size)
