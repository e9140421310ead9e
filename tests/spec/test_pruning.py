"""Drafts lose what leaves the grammar, and nothing else."""

import random
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolepsis.core.errors import GrammarFailed
from prolepsis.core.requests import GrammarSpec
from prolepsis.grammar.matcher import Matcher
from prolepsis.spec.candidate import forced_nodes, within_grammar
from prolepsis.spec.draft import ROOT, Draft, chain
from tests.grammar.tiny import EOS, few_tokens, grammars, token_id

TOKENIZER = few_tokens()
ZERO, A, B, AB = (token_id(TOKENIZER, text) for text in ("0", "a", "b", "ab"))
GRAMMAR = grammars(TOKENIZER).compile(GrammarSpec("regex", "(ab|a[01])*"))


def below(draft: Draft, node: int) -> list[int]:
    """Return the tokens from the root down to `node`."""
    return [] if node == ROOT else [*below(draft, draft.parents[node]), draft.tokens[node]]


@settings(max_examples=60, deadline=None)
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


def test_what_is_forced_decides_the_spelling() -> None:
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
