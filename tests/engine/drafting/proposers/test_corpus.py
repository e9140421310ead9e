"""Drafts from the texts of a tenant or a route: whose they are, and how their indexes come and go."""

from array import array
from collections.abc import Sequence
from concurrent.futures import Executor

import pytest

from prolepsis.core.messages import SetCorpora, owners
from prolepsis.engine.drafting.draft import Draft
from prolepsis.engine.drafting.proposers.corpus import CorpusProposer
from prolepsis.engine.native.proposing import draft_kernel
from tests.engine.drafting.executors import AtOnce, Later
from tests.engine.drafting.sequences import VOCAB, FakeSequence

WAYS = pytest.mark.parametrize("native", [True, False], ids=["native", "reference"])
CLASS = "chat-completions/standard/free/short"


def corpora(native: bool = True, max_bytes: int = 1 << 20, builder: Executor | None = None) -> CorpusProposer:
    if native and draft_kernel() is None:
        pytest.skip("no compiled suffix index on this machine")
    return CorpusProposer(max_bytes, native=native, builder=builder or AtOnce())


def texts(*given: Sequence[int]) -> tuple[bytes, ...]:
    return tuple(array("i", tokens).tobytes() for tokens in given)


def drafted(proposer: CorpusProposer, sequence: FakeSequence, limit: int = 8) -> Draft | None:
    """Return the second draft: the first call has the index built."""
    proposer.propose([sequence], [limit])
    [draft] = proposer.propose([sequence], [limit])
    assert draft is None or draft.fault(VOCAB, limit) is None
    return draft


@WAYS
def test_drafts_what_follows_in_a_text(native: bool) -> None:
    proposer = corpora(native)
    proposer.take_corpora(SetCorpora("tenant:a", texts([9, 9, 1, 2, 3, 4, 5, 6], [7, 8])))
    draft = drafted(proposer, FakeSequence([50, 1, 2, 3], tenant="a"))
    assert draft is not None
    assert draft.tokens[:3] == (4, 5, 6)
    assert 7 not in draft.tokens, "a text ends where it ends"


@WAYS
def test_a_long_text_is_found_across_its_portions(native: bool) -> None:
    proposer = corpora(native)
    text = [(i * i + i // 7) % VOCAB for i in range(3000)]
    proposer.take_corpora(SetCorpora("tenant:a", texts(text)))
    for place in (1023, 1024, 1025, 2900):
        draft = drafted(proposer, FakeSequence(text[place - 30 : place], tenant="a"), 1)
        assert draft is not None
        assert draft.tokens == (text[place],)


@WAYS
def test_no_tenant_sees_the_text_of_another(native: bool) -> None:
    """Both texts go on behind the same tokens, so that a draft shows whose text it is from."""
    proposer, context = corpora(native), [1, 2, 3, 4]
    proposer.take_corpora(SetCorpora("tenant:a", texts([*context, 10, 11, 12])))
    proposer.take_corpora(SetCorpora("tenant:b", texts([*context, 20, 21, 22])))
    found = {name: drafted(proposer, FakeSequence(context, tenant=name, key=name)) for name in ("a", "b")}
    assert {name: draft and set(draft.tokens) for name, draft in found.items()} == {
        "a": {10, 11, 12},
        "b": {20, 21, 22},
    }
    for stranger in (FakeSequence(context, tenant="c"), FakeSequence(context)):
        assert not proposer.serves(stranger)
        assert drafted(proposer, stranger) is None


def test_a_tenant_called_like_a_route_gets_nothing_of_the_route() -> None:
    proposer, context = corpora(), [1, 2, 3, 4]
    proposer.take_corpora(SetCorpora(owners("", CLASS, "")[1], texts([*context, 10])))
    assert drafted(proposer, FakeSequence(context, tenant="route:chat-completions")) is None
    assert drafted(proposer, FakeSequence(context, tenant="a", traffic_class=CLASS)) is not None
    assert not proposer.serves(FakeSequence(context, tenant="a", traffic_class=CLASS.replace("chat-", "")))


@WAYS
def test_texts_of_requests_without_a_salt_are_not_drafted_for_those_with_one(native: bool) -> None:
    proposer, context = corpora(native), [1, 2, 3, 4]
    proposer.take_corpora(SetCorpora("requests:1:a", texts([*context, 10])))
    assert drafted(proposer, FakeSequence(context, tenant="a", cache_salt="1:a")) is not None
    for salt in ("1:a:user", ""):
        assert not proposer.serves(stranger := FakeSequence(context, tenant="a", cache_salt=salt))
        assert drafted(proposer, stranger) is None


def test_the_longer_match_of_tenant_and_route_counts() -> None:
    proposer = corpora()
    proposer.take_corpora(SetCorpora(owners("", CLASS, "")[1], texts([3, 4, 10])))
    proposer.take_corpora(SetCorpora("tenant:a", texts([*range(20), 50])))
    draft = drafted(proposer, FakeSequence([*range(20)], tenant="a", traffic_class=CLASS), 1)
    assert draft is not None
    assert draft.tokens == (50,)


def test_new_texts_replace_old_ones_and_none_removes_them() -> None:
    proposer, sequence = corpora(), FakeSequence([1, 2, 3], tenant="a")
    for last in (10, 20):
        proposer.take_corpora(SetCorpora("tenant:a", texts([1, 2, 3, last])))
        draft = drafted(proposer, sequence)
        assert draft is not None
        assert draft.tokens == (last,)
    proposer.take_corpora(SetCorpora("tenant:a", ()))
    assert not proposer.serves(sequence)
    assert drafted(proposer, sequence) is None
    assert proposer.memory().index == 0


def test_nothing_is_built_in_a_call_and_what_was_replaced_meanwhile_is_dropped() -> None:
    builder = Later()
    proposer, sequence = corpora(builder=builder), FakeSequence([1, 2, 3], tenant="a")
    proposer.take_corpora(SetCorpora("tenant:a", texts([1, 2, 3, 10])))
    assert drafted(proposer, sequence) is None
    assert len(builder.waiting) == 1
    proposer.take_corpora(SetCorpora("tenant:a", texts([1, 2, 3, 20])))
    builder.run()
    assert drafted(proposer, sequence) is None
    builder.run()
    draft = drafted(proposer, sequence)
    assert draft is not None
    assert draft.tokens == (20,)


def test_the_index_that_was_used_longest_ago_is_dropped_and_built_again() -> None:
    proposer = corpora(max_bytes=130_000)
    sequences = {name: FakeSequence([1, 2, 3], tenant=name, key=name) for name in "abc"}
    for place, name in enumerate(sequences):
        text = [1, 2, 3, 60 + place, *([0] * 400)]
        proposer.take_corpora(SetCorpora(f"tenant:{name}", texts(text)))
    for name in ("a", "b", "a", "c", "a", "b"):
        draft = drafted(proposer, sequences[name], 1)
        assert draft is not None
        assert draft.tokens == (60 + "abc".index(name),)
        assert proposer.memory().index <= 130_000 + 3 * 4 * 404
    assert proposer.propose([sequences["a"]], [1]) != [None], "it was used last but one"
    assert proposer.propose([sequences["c"]], [1]) == [None], "it was used before"


def test_of_a_text_larger_than_the_memory_the_end_stays() -> None:
    proposer = corpora(max_bytes=64 * 60)
    proposer.take_corpora(SetCorpora("tenant:a", texts([1, 2, 3, 10, *([0] * 500), 4, 5, 6, 20])))
    assert drafted(proposer, FakeSequence([1, 2, 3], tenant="a")) is None
    draft = drafted(proposer, FakeSequence([4, 5, 6], tenant="a"))
    assert draft is not None
    assert draft.tokens == (20,)
