import random
from itertools import accumulate
from operator import mul
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.config import MERGED
from prolepsis.core.errors import GrammarFailed
from prolepsis.core.requests import GrammarSpec
from prolepsis.core.stats import ProposerCounts, count_draft
from prolepsis.engine.drafting.acceptance import survivals
from prolepsis.engine.drafting.candidate import (
    ScoredDraft,
    forced_nodes,
    merge,
    merge_in_python,
    within_grammar,
)
from prolepsis.engine.drafting.draft import ROOT, Draft, chain
from prolepsis.engine.drafting.verify import verify
from prolepsis.engine.native.proposing import draft_kernel
from prolepsis.engine.text.grammar.matcher import Matcher
from tests.engine.drafting.drafts import paths, rates, trees
from tests.engine.drafting.sequences import VOCAB
from tests.engine.text.grammar.tiny import EOS, few_tokens, grammars, token_id

Pair = tuple[Draft, list[float], Draft, list[float]]
pairs = st.tuples(trees("a"), trees("b")).flatmap(
    lambda two: st.tuples(st.just(two[0]), rates(two[0]), st.just(two[1]), rates(two[1]))
)


def _merge(first: Draft, first_rates: list[float], second: Draft, second_rates: list[float], *, limit: int) -> Draft:
    scored = [ScoredDraft(d, survivals(d, r), 0.0) for d, r in ((first, first_rates), (second, second_rates))]
    return merge(scored[0], scored[1], limit)


def _verdict(draft: Draft, truth: list[int]) -> tuple[int, ...]:
    """Return the tokens that a target that says `truth` accepts of the draft."""
    depth = [0, *draft.depths()]
    return tuple(draft.tokens[node] for node in verify(draft, lambda node: truth[depth[node + 1]]).path)


@given(pairs)
def test_the_union_holds_both_and_nothing_else(pair: Pair) -> None:
    first, _, second, _ = pair
    union = _merge(*pair, limit=100)
    assert paths(union).keys() == paths(first).keys() | paths(second).keys()
    assert union.fault(VOCAB, 100) is None
    assert union.proposer == MERGED
    for path, node in paths(union).items():
        assert union.sources[node] == ("a" if path in paths(first) else "b")


@given(pairs, st.lists(st.integers(1, 3), min_size=9, max_size=9))
def test_verification_accepts_the_longer_of_both_accepted_paths(pair: Pair, truth: list[int]) -> None:
    first, _, second, _ = pair
    alone = [_verdict(draft, truth) for draft in (first, second)]
    assert _verdict(_merge(*pair, limit=100), truth) == max(alone, key=len)


@given(pairs, st.integers(1, 9))
def test_the_likeliest_nodes_stay_with_their_parents_and_the_principal_chain_is_in_front(
    pair: Pair, limit: int
) -> None:
    union, whole = _merge(*pair, limit=limit), _merge(*pair, limit=100)
    assert len(union.tokens) == min(limit, len(whole.tokens))
    assert union.fault(VOCAB, limit) is None
    assert paths(union).keys() <= paths(whole).keys()
    assert sorted(union.survival, reverse=True) == pytest.approx(sorted(whole.survival, reverse=True)[:limit])
    for parent, alive in zip(union.parents, union.survival, strict=True):
        assert parent == ROOT or alive <= union.survival[parent]
    at, node = ROOT, 0
    while children := [i for i in range(len(union.tokens)) if union.parents[i] == at]:
        likeliest = max(children, key=lambda i: union.survival[i])
        assert union.survival[node] == union.survival[likeliest], "the chain of likeliest nodes is in front"
        assert union.parents[node] == at
        at, node = node, node + 1


@given(pairs)
def test_a_shared_node_takes_the_better_rate(pair: Pair) -> None:
    first, first_rates, second, second_rates = pair
    union = _merge(*pair, limit=100)
    known = [(paths(first), first_rates), (paths(second), second_rates)]
    best = {path: max(r[p[path]] for p, r in known if path in p) for path in paths(union)}
    for path, node in paths(union).items():
        expected = list(accumulate((best[path[:end]] for end in range(1, len(path) + 1)), mul))[-1]
        assert union.survival[node] == pytest.approx(expected)


def test_buckets_tell_agreement_from_contest_and_who_stands_alone() -> None:
    first, second = chain((1, 2), "a"), Draft((1, 3, 4), (-1, 0, -1), "b")
    union = _merge(first, [0.5, 0.5], second, [0.5, 0.5, 0.5], limit=9)
    kinds = {path: union.buckets[node] // 17 for path, node in paths(union).items()}
    assert kinds == {(1,): 0, (1, 2): 3, (1, 3): 4, (4,): 4}
    alone = _merge(first, [0.5, 0.5], chain((1,), "b"), [0.5], limit=9)
    assert [bucket // 17 for bucket in alone.buckets] == [0, 1]


@given(pairs, st.lists(st.integers(1, 3), min_size=9, max_size=9), st.integers(1, 9))
def test_a_merged_draft_counts_once_each_position_with_who_brought_it(pair: Pair, truth: list[int], limit: int) -> None:
    union = _merge(*pair, limit=limit)
    path = union.follow(truth)
    counts: dict[str, ProposerCounts] = {}
    count_draft(counts, union.credits(path), len(path))
    alone = ProposerCounts()
    alone.record(max(union.depths()), len(path))
    assert sum(c.num_drafts for c in counts.values()) == 1
    assert sum(c.num_draft_tokens for c in counts.values()) == alone.num_draft_tokens
    assert sum(c.num_accepted for c in counts.values()) == alone.num_accepted == len(path)
    for name, own in counts.items():
        assert own.num_accepted == sum(union.sources[node] == name for node in path)
        assert own.num_draft_tokens == sum(drafted for drafted, _ in own.per_position)
    per_position = [
        [sum(c.per_position[j][k] for c in counts.values() if j < len(c.per_position)) for k in (0, 1)]
        for j in range(max(union.depths()))
    ]
    assert per_position == alone.per_position


def test_sources_follow_their_nodes_when_a_draft_is_cut() -> None:
    union = _merge(chain((1, 2), "a"), [0.9, 0.9], chain((3,), "b"), [0.5], limit=9)
    assert union.sources == ("a", "a", "b")
    assert union.cut(2).sources == ("a", "a")
    assert union.select([0, 2]).sources == ("a", "b")


def test_three_drafts_keep_their_proposers() -> None:
    two = _merge(chain((1, 2), "a"), [0.9, 0.9], chain((3,), "b"), [0.5], limit=9)
    three = _merge(two, [0.9, 0.9, 0.5], chain((3, 4), "c"), [0.4, 0.4], limit=9)
    assert {path: three.sources[node] for path, node in paths(three).items()} == {
        (1,): "a",
        (1, 2): "a",
        (3,): "b",
        (3, 4): "c",
    }


@given(pairs)
def test_merging_keeps_the_nodes_that_may_survive(pair: Pair) -> None:
    first, first_rates, second, second_rates = pair
    union = _merge(*pair, limit=100)
    kept = set[tuple[int, ...]]()
    for draft, of_nodes in ((first, first_rates), (second, second_rates)):
        alive = survivals(draft, of_nodes)
        kept |= {path for path, node in paths(draft).items() if alive[node] > 0.0}
    assert paths(union).keys() == kept
    assert union.fault(VOCAB, 100) is None


TOKENIZER = few_tokens()
ZERO, A, B, AB = (token_id(TOKENIZER, text) for text in ("0", "a", "b", "ab"))
GRAMMAR = grammars(TOKENIZER).compile(GrammarSpec("regex", "(ab|a[01])*"))


@given(pairs, pairs, st.integers(1, 9))
def test_the_native_merge_is_that_of_the_reference(pair: Pair, other: Pair, limit: int) -> None:
    """Also of a draft that is merged already, whose nodes have several proposers."""
    if draft_kernel() is None:
        pytest.skip("no compiled merge on this machine")
    one, two, three = (
        ScoredDraft(draft, survivals(draft, rates), 0.0) for draft, rates in (pair[:2], pair[2:], other[:2])
    )
    merged = merge(one, two, limit)
    assert merged == merge_in_python(one, two, limit)
    if merged.tokens:
        again = ScoredDraft(merged, merged.survival, 0.0)
        assert merge(again, three, limit) == merge_in_python(again, three, limit)


def below(draft: Draft, node: int) -> list[int]:
    """Return the tokens from the root down to `node`."""
    return [] if node == ROOT else [*below(draft, draft.parents[node]), draft.tokens[node]]


@given(seed=st.integers(0, 2**32), size=st.integers(1, 14))
def test_the_nodes_kept_are_those_every_mask_above_allows(seed: int, size: int) -> None:
    rng = random.Random(seed)
    tokens: list[int] = []
    parents: list[int] = []
    while len(tokens) < size:
        parent = rng.randint(ROOT, len(tokens) - 1)
        token = rng.choice([ZERO, A, B, AB, EOS])
        if (token, parent) not in set(zip(tokens, parents, strict=True)):
            tokens.append(token)
            parents.append(parent)
    draft = Draft(tuple(tokens), tuple(parents), "test", tuple(0.5 for _ in tokens), 0, tuple(range(size)))
    matcher = GRAMMAR.matcher()
    kept = within_grammar(draft, matcher)
    expected = []
    for node in range(size):
        path = below(draft, node)
        if EOS not in path[:-1] and all(matcher.mask(path[:i])[token] for i, token in enumerate(path)):
            expected.append(node)
    assert (list(kept.buckets) if kept else []) == expected


def test_forced_tokens_decide_the_spelling() -> None:
    matcher = grammars(TOKENIZER).compile(GrammarSpec("regex", "ab[01]")).matcher()
    assert matcher.forced() == (AB,)
    assert within_grammar(chain((A, B, ZERO), "test"), matcher) is None
    draft = within_grammar(chain((AB, ZERO, ZERO), "test"), matcher)
    assert draft is not None
    assert draft.tokens == (AB, ZERO)
    assert forced_nodes(draft, matcher) == [0]
    tree = Draft((A, AB, ZERO, B), (ROOT, ROOT, 1, 0), "test")
    assert forced_nodes(tree, matcher) == [1]
    assert within_grammar(tree, matcher) == Draft((AB, ZERO), (ROOT, 0), "test")


class Broken:
    def accepted(self, tokens: object) -> int:
        raise GrammarFailed("too complex")


@pytest.mark.parametrize("draft", [chain((A,), "test"), Draft((A, B), (ROOT, ROOT), "test")])
def test_a_matcher_that_fails_costs_the_draft(draft: Draft) -> None:
    assert within_grammar(draft, cast(Matcher, Broken())) is None


def test_asking_leaves_the_matcher_where_it_was() -> None:
    matcher = GRAMMAR.matcher()
    matcher.advance([A])
    before = matcher.mask()
    within_grammar(Draft((ZERO, B, A), (ROOT, ROOT, 0), "test"), matcher)
    assert np.array_equal(matcher.mask(), before)
