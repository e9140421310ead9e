from hypothesis import given, settings
from hypothesis import strategies as st

from prolepsis.spec.proposers.suffix import SuffixProposer
from tests.spec.sequences import VOCAB, FakeSequence


def test_drafts_the_continuation_of_the_longest_match_as_principal_chain() -> None:
    sequence = FakeSequence([1, 2, 3, 4, 5, 6, 9, 3, 7, 1, 2, 3])
    draft = SuffixProposer().propose([sequence], [4])[0]
    assert draft is not None
    assert draft.tokens[:3] == (4, 5, 6)
    assert draft.parents[:3] == (-1, 0, 1)


def test_disagreeing_continuations_become_branches_likelier_first() -> None:
    sequence = FakeSequence([1, 2, 7, 0, 1, 2, 7, 0, 1, 2, 8, 0, 1, 2])
    draft = SuffixProposer().propose([sequence], [12])[0]
    assert draft is not None
    first = [(draft.tokens[i], draft.survival[i]) for i, parent in enumerate(draft.parents) if parent == -1]
    assert {token for token, _ in first} == {7, 8}
    assert dict(first)[7] > 0.1
    assert dict(first)[8] > 0.1


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), max_size=4),
    st.integers(1, 16),
)
def test_every_draft_is_sound(tokens: list[int], outputs: list[list[int]], limit: int) -> None:
    proposer = SuffixProposer(max_bytes=1 << 14)
    for i, output in enumerate(outputs):
        proposer.forget(FakeSequence([5, *output], num_prompt_tokens=1, key=f"past{i}"))
    draft = proposer.propose([FakeSequence(tokens)], [limit])[0]
    if draft is None:
        return
    assert draft.fault(VOCAB, limit) is None
    depths = draft.depths()
    chain = max(i + 1 for i in range(len(depths)) if depths[i] == i + 1 and draft.parents[i] == i - 1)
    assert all(parent != chain - 1 for parent in draft.parents[chain:]), "the principal chain goes to its leaf"
    for i, parent in enumerate(draft.parents):
        assert draft.survival[i] <= (1.0 if parent < 0 else draft.survival[parent])


def test_past_outputs_serve_their_own_scope_only() -> None:
    proposer = SuffixProposer()
    proposer.forget(FakeSequence([1, 10, 11, 12, 13], num_prompt_tokens=1, key="past", cache_salt="acme"))
    fresh = FakeSequence([50, 10, 11], key="new", cache_salt="acme")
    other = FakeSequence([50, 10, 11], key="other", cache_salt="globex")
    drafts = proposer.propose([fresh, other], [4, 4])
    assert drafts[0] is not None
    assert drafts[0].tokens == (12, 13)
    assert drafts[1] is None


def test_forgetting_frees_the_sequences_own_index() -> None:
    proposer = SuffixProposer()
    sequence = FakeSequence([1, 2, 1, 2], num_prompt_tokens=2)
    proposer.propose([sequence], [4])
    assert proposer._local
    proposer.forget(sequence)
    assert not proposer._local


def test_a_prompt_that_was_never_answered_leaves_nothing() -> None:
    proposer = SuffixProposer()
    proposer.forget(FakeSequence([1, 2, 3], num_prompt_tokens=3))
    assert proposer.shared.num_tokens == 0
