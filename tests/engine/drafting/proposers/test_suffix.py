import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.drafting.proposers import suffix_index
from prolepsis.engine.drafting.proposers.suffix import SuffixProposer
from prolepsis.engine.drafting.proposers.suffix_index import SEPARATOR
from prolepsis.engine.native.proposing import draft_kernel
from tests.engine.drafting.sequences import VOCAB, FakeSequence

WAYS = pytest.mark.parametrize("native", [True, False], ids=["native", "reference"])


def suffix(native: bool, max_bytes: int = 1 << 20) -> SuffixProposer:
    if native and draft_kernel() is None:
        pytest.skip("no compiled suffix index on this machine")
    return SuffixProposer(max_bytes, native=native)


@WAYS
def test_drafts_the_continuation_of_the_longest_match_as_principal_chain(native: bool) -> None:
    sequence = FakeSequence([1, 2, 3, 4, 5, 6, 9, 3, 7, 1, 2, 3])
    draft = suffix(native).propose([sequence], [4])[0]
    assert draft is not None
    assert draft.tokens[:3] == (4, 5, 6)
    assert draft.parents[:3] == (-1, 0, 1)


@WAYS
def test_disagreeing_continuations_become_branches_likelier_first(native: bool) -> None:
    sequence = FakeSequence([1, 2, 7, 0, 1, 2, 7, 0, 1, 2, 8, 0, 1, 2])
    draft = suffix(native).propose([sequence], [12])[0]
    assert draft is not None
    first = [(draft.tokens[i], draft.survival[i]) for i, parent in enumerate(draft.parents) if parent == -1]
    assert {token for token, _ in first} == {7, 8}
    assert dict(first)[7] > 0.1
    assert dict(first)[8] > 0.1


@WAYS
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=80),
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=30), max_size=4),
    st.integers(1, 16),
)
def test_every_draft_is_sound(native: bool, tokens: list[int], outputs: list[list[int]], limit: int) -> None:
    proposer = suffix(native, 1 << 14)
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


@WAYS
def test_past_outputs_serve_their_own_scope_only(native: bool) -> None:
    proposer = suffix(native)
    proposer.forget(FakeSequence([1, 10, 11, 12, 13], num_prompt_tokens=1, key="past", cache_salt="acme"))
    fresh = FakeSequence([50, 10, 11], key="new", cache_salt="acme")
    other = FakeSequence([50, 10, 11], key="other", cache_salt="globex")
    drafts = proposer.propose([fresh, other], [4, 4])
    assert drafts[0] is not None
    assert drafts[0].tokens == (12, 13)
    assert drafts[1] is None


@WAYS
def test_the_prompts_last_tokens_match_the_first_of_an_output(native: bool) -> None:
    proposer = suffix(native)
    proposer.forget(FakeSequence([*range(40), 7, 8, 9, 1, 2, 3], num_prompt_tokens=43, key="past"))
    ends, others = FakeSequence([60, 8, 9], key="ends"), FakeSequence([60, 10, 11], key="others")
    drafts = proposer.propose([ends, others], [3, 3])
    assert drafts[0] is not None
    assert drafts[0].tokens == (1, 2, 3)
    assert drafts[1] is None, "only the prompt's end is kept"


@WAYS
def test_forgetting_frees_the_sequences_own_index(native: bool) -> None:
    proposer = suffix(native)
    sequence = FakeSequence([1, 2, 1, 2], num_prompt_tokens=2)
    proposer.propose([sequence], [4])
    assert proposer._local
    proposer.forget(sequence)
    assert not proposer._local


@WAYS
def test_a_prompt_that_was_never_answered_leaves_nothing(native: bool) -> None:
    proposer = suffix(native)
    proposer.forget(FakeSequence([1, 2, 3], num_prompt_tokens=3))
    assert proposer.shared.num_tokens == 0


@WAYS
def test_scopes_stay_apart_when_the_ring_overflows(native: bool) -> None:
    """A hundred scopes hold the same n-grams in 600 slots: chance alone puts some into the same slot."""
    proposer = suffix(native, 600 * 60)
    for scope in range(200):
        tokens = [9, 1, 2, 3, 4, 5 + scope % 90]
        proposer.forget(FakeSequence(tokens, num_prompt_tokens=1, key=f"past{scope}", cache_salt=str(scope)))
    for scope in range(200):
        fresh = FakeSequence([60, 1, 2, 3, 4], key=f"new{scope}", cache_salt=str(scope))
        (draft,) = proposer.propose([fresh], [1])
        assert draft.tokens == (5 + scope % 90,) if draft is not None else scope < 115, "the ring holds the last 85"


TOKENS = st.lists(st.integers(0, 4), max_size=60)


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 3), min_size=1, max_size=80)), max_size=6),
    st.lists(st.integers(0, 4), min_size=1, max_size=80),
    st.lists(st.tuples(st.integers(1, 7), st.integers(1, 16)), min_size=1, max_size=6),
    st.sampled_from([1 << 20, 100 * 60]),
)
def test_native_drafts_are_those_of_the_reference(
    outputs: list[tuple[str, list[int]]], text: list[int], steps: list[tuple[int, int]], max_bytes: int
) -> None:
    """Rings that overflow included: tokens, estimates and buckets, as a sequence grows."""
    proposers = [suffix(native, max_bytes) for native in (True, False)]
    for i, (scope, output) in enumerate(outputs):
        past = FakeSequence([5, *output], num_prompt_tokens=1, key=f"past{i}", cache_salt=scope)
        for proposer in proposers:
            proposer.forget(past)
    size = 0
    for more, limit in steps:
        size = min(len(text), size + more)
        sequences = [FakeSequence(text[:size], key=scope, cache_salt=scope) for scope in "ab"]
        native, reference = (proposer.propose(sequences, [limit, limit]) for proposer in proposers)
        assert native == reference


@given(st.booleans(), st.booleans(), TOKENS, TOKENS, st.data())
def test_native_places_are_followed_as_the_reference_follows_them(
    searches_own: bool, follows: bool, text: list[int], given_text: list[int], data: st.DataObject
) -> None:
    """The sequence is an edited copy of its own tokens and of a text given in two parts."""
    kernel = draft_kernel()
    if kernel is None:
        pytest.skip("no compiled suffix index on this machine")
    changed = data.draw(st.lists(st.one_of(st.sampled_from([*text, *given_text, 9]), st.just(-1)), max_size=4))
    tokens = [
        *text,
        *given_text[:25],
        *(token for token in changed if token >= 0),
        *given_text[25 + len(changed) :],
        *text,
    ]
    indexes = kernel.SequenceIndex(searches_own), suffix_index.SequenceIndex(searches_own)
    for index in indexes:
        index.give(given_text[:40])
        if follows:
            index.follow_given()
    known = 0
    while known < len(tokens):
        new, limit = tokens[known : known + data.draw(st.integers(1, 9))], data.draw(st.integers(1, 24))
        native = kernel.propose(None, [(indexes[0], new, 0, limit)])
        reference = suffix_index.propose(None, [(indexes[1], new, 0, limit)])
        assert native == reference
        assert indexes[0].goes_on == indexes[1].goes_on
        if known < 40 <= known + len(new):
            for index in indexes:
                index.give([SEPARATOR, *given_text[40:]])
        known += len(new)
