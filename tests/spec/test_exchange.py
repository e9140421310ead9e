"""A proposer in the place of another: what is kept and what is forgotten."""

from collections.abc import Sequence

import pytest

from prolepsis.spec.acceptance import AcceptanceEstimator
from prolepsis.spec.choose import ProposerSet
from prolepsis.spec.cost import flat_cost
from prolepsis.spec.draft import Draft, chain
from prolepsis.spec.proposer import Proposer, SequenceView
from prolepsis.spec.window import DraftWindow
from tests.spec.sequences import FakeSequence


class Costly(Proposer):
    """Proposes nothing, and raises where it is told of tokens if it is `broken`."""

    name = "costly"

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return []

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        if self.broken:
            raise RuntimeError("broken")


def test_counters_go_on_and_estimates_start_over() -> None:
    acceptance = AcceptanceEstimator()
    proposers = ProposerSet([Costly(broken=True)], DraftWindow(flat_cost()), acceptance, 24)
    draft = chain((1, 2), "costly")
    acceptance.record(draft, 0, 0, hit=False)
    proposers.observe(draft, (0,))
    proposers.commit(FakeSequence([1, 2, 3]), 1)
    assert acceptance.survival("costly", 1)[0] < 0.6
    proposers.exchange("costly", None)
    assert (proposers.names, proposers.failures) == ((), {})
    proposers.exchange("costly", Costly())
    assert (proposers.names, proposers.failures) == (("costly",), {"costly": 1})
    assert proposers.counts["costly"].num_accepted == 1
    assert acceptance.survival("costly", 1) == (0.6,)
    proposers.commit(FakeSequence([1, 2, 3]), 1)
    assert proposers.failures == {"costly": 1}, "the new one is sound"


def test_a_proposer_is_exchanged_for_one_of_its_name() -> None:
    proposers = ProposerSet([], DraftWindow(flat_cost()), AcceptanceEstimator(), 24)
    with pytest.raises(AssertionError, match="of its name"):
        proposers.exchange("other", Costly())
