from collections.abc import Sequence

import pytest

from prolepsis.engine.drafting.call_watch import WatchedCall
from prolepsis.engine.drafting.containment import ContainedProposer
from prolepsis.engine.drafting.draft import Draft, chain
from prolepsis.engine.drafting.proposer import Proposer, SequenceView
from tests.engine.drafting.sequences import VOCAB, FakeSequence
from tests.fake_proposer import Scripted

SAMPLES = [FakeSequence([1], key=key) for key in "abc"]

NONSENSE = {
    "out of the vocabulary": chain((VOCAB,), "scripted"),
    "negative": chain((-1,), "scripted"),
    "no integer": chain((1.5,), "scripted"),  # type: ignore[arg-type]
    "too long": chain((1, 2, 3, 4, 5), "scripted"),
    "parents missing": Draft((1, 2), (-1,), "scripted"),
    "parent after child": Draft((1, 2), (1, -1), "scripted"),
    "twins": Draft((1, 1), (-1, -1), "scripted"),
    "survival is no probability": chain((1,), "scripted", survival=(float("nan"),)),
    "signed by another": chain((1,), "suffix"),
    "a node signed by another": Draft((1,), (-1,), "scripted", sources=("suffix",)),
    "sources missing": Draft((1, 2), (-1, 0), "scripted", sources=("scripted",)),
    "no draft at all": "hello",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_costs_its_row_and_one_count(name: str) -> None:
    def script(sequence: SequenceView, limit: int) -> Draft | None:
        return NONSENSE[name] if sequence.key == "b" else chain((7,), "scripted")  # type: ignore[return-value]

    contained = ContainedProposer(Scripted(script), VOCAB)
    drafts = contained.propose(SAMPLES, [4, 4, 4])
    assert [draft is not None for draft in drafts] == [True, False, True]
    assert contained.num_failures == 1


def test_a_row_that_raises_costs_only_its_own_draft() -> None:
    def script(sequence: SequenceView, limit: int) -> Draft | None:
        if sequence.key == "b":
            raise RuntimeError("poison")
        return chain((7,), "scripted")

    contained = ContainedProposer(Scripted(script), VOCAB)
    for _ in range(20):
        assert not contained.backs_off()
        assert [d is not None for d in contained.propose(SAMPLES, [4, 4, 4])] == [True, False, True]
    assert contained.num_failures == 20


class _Short(Proposer):
    name = "short"

    def propose(self, sequences: Sequence[SequenceView], limits: Sequence[int]) -> list[Draft | None]:
        return []

    def commit(self, sequence: SequenceView, num_new: int) -> None:
        raise ValueError("commit")

    def forget(self, sequence: SequenceView) -> None:
        raise ValueError("forget")


def test_wrong_counts_and_raising_verbs_are_contained() -> None:
    contained = ContainedProposer(_Short(), VOCAB)
    assert contained.propose(SAMPLES[:1], [4]) == [None]
    contained.commit(SAMPLES[0], 1)
    contained.forget(SAMPLES[0])
    assert contained.num_failures == 3


def test_a_proposer_that_keeps_failing_is_tried_again_after_longer_and_longer_waits() -> None:
    broken = True

    def script(sequence: SequenceView, limit: int) -> Draft | None:
        if broken:
            raise RuntimeError("down")
        return chain((7,), "scripted")

    contained = ContainedProposer(Scripted(script), VOCAB)
    rests = []
    for _ in range(6):
        contained.propose(SAMPLES[:1], [4])
        rest = 0
        while contained.backs_off():
            rest += 1
        rests.append(rest)
    assert rests == [0, 0, 16, 32, 64, 128]
    broken = False
    assert contained.propose(SAMPLES[:1], [4])[0] is not None
    broken = True
    contained.propose(SAMPLES[:1], [4])
    assert not contained.backs_off()  # a success clears the record


def test_memory_is_not_lent_while_a_call_that_is_overdue_may_write_there() -> None:
    contained = ContainedProposer(Scripted(lambda sequence, limit: None), VOCAB)
    call = WatchedCall(contained, SAMPLES[:1], 0.0)
    contained.lose(call)
    assert not contained.lend()
    assert not contained.is_lent
    call.returned = True
    assert contained.lend()
    assert contained.is_lent
    assert contained.is_out
