"""Only the principal chain of a draft is left."""

import pytest

from prolepsis.adapters.vllm.chains import ChainProposer, chain_of
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import SequenceView
from tests.engine.drafting.sequences import FakeSequence
from tests.fake_proposer import Scripted

TREE = Draft((1, 2, 3, 4), (-1, 0, 0, 1), "scripted", (0.9, 0.8, 0.1, 0.5), buckets=(1, 2, 3, 4))


@pytest.mark.parametrize(
    ("draft", "limit", "left"),
    [(TREE, 8, (1, 2)), (TREE, 1, (1,)), (chain((5, 6, 7), "scripted"), 8, (5, 6, 7)), (TREE, 0, ())],
)
def test_branches_are_left_out(draft: Draft, limit: int, left: tuple[int, ...]) -> None:
    found = chain_of(draft, limit)
    assert found.tokens == left
    assert found.is_chain
    assert found.fault(100, limit) is None


def test_a_proposer_is_asked_for_more_nodes_and_keeps_its_chain() -> None:
    asked: list[int] = []

    def propose(sequence: SequenceView, limit: int) -> Draft:
        asked.append(limit)
        return TREE

    inner = Scripted(propose)
    proposer, sequence = ChainProposer(inner), FakeSequence([1, 2])
    [draft] = proposer.propose([sequence], [2])
    assert draft is not None
    assert draft.tokens == (1, 2)
    assert asked == [4]
    proposer.forget(sequence)
    assert inner.forgotten == [sequence.key]
    assert proposer.memory() == inner.memory()
    assert proposer.serves(sequence)
