"""Prompt lookup, and what a grammar forces, which is looked up behind."""

from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.drafting.proposers.prompt_lookup import PromptLookupProposer
from prolepsis.engine.text.grammar.matcher import Matcher
from tests.engine.drafting.sequences import FakeSequence
from tests.engine.text.grammar.tiny import RECORD, few_tokens, grammars, json_schema, text_of


def _reference(tokens: list[int], limit: int) -> tuple[tuple[int, ...], int] | None:
    for size in (5, 4, 3, 2):
        for start in range(len(tokens) - 1, size - 1, -1):
            if tokens[start - size : start] == tokens[-size:]:
                grown = list(tokens)
                while len(grown) < start + limit:
                    grown.append(grown[len(grown) - (len(tokens) - start)])
                return tuple(grown[start : start + limit]), size
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=50), st.lists(st.integers(1, 5), max_size=6), st.integers(1, 8))
def test_equals_a_search_from_the_end(tokens: list[int], steps: list[int], limit: int) -> None:
    proposer, sequence = PromptLookupProposer(), FakeSequence([])
    for step in [*steps, len(tokens)]:
        sequence.tokens += tokens[len(sequence.tokens) : len(sequence.tokens) + step]
        draft = proposer.propose([sequence], [limit])[0]
        expected = _reference(sequence.tokens, limit)
        assert (None if draft is None else (draft.tokens, draft.bucket)) == expected


def test_sequences_are_apart_and_forgotten() -> None:
    proposer = PromptLookupProposer()
    one, two = FakeSequence([1, 2, 3, 1, 2], key="one"), FakeSequence([4, 5, 1, 2], key="two")
    drafts = proposer.propose([one, two], [4, 4])
    assert drafts[0] is not None
    assert drafts[1] is None
    proposer.forget(one)
    proposer.forget(one)
    assert set(proposer._indexes._indexes) == {"two"}


TOKENIZER = few_tokens()
GRAMMARS = grammars(TOKENIZER)


def sequence(spec: GrammarSpec, output: str, prompt: str = "") -> FakeSequence:
    matcher: Matcher = GRAMMARS.compile(spec).matcher()
    tokens = TOKENIZER.encode(output).ids
    matcher.advance(tokens)
    before = TOKENIZER.encode(prompt).ids
    return FakeSequence([*before, *tokens], len(before), matcher=matcher)


def test_forced_tokens_are_proposed_up_to_the_limit() -> None:
    asked = sequence(json_schema(RECORD), "")
    (draft,) = GrammarProposer().propose([asked], [8])
    assert draft is not None
    assert text_of(TOKENIZER, draft.tokens) in '{"a": ['
    assert draft.tokens == asked.matcher.forced() if asked.matcher else False
    assert draft.survival[-1] > 0.97
    (short,) = GrammarProposer().propose([asked], [2])
    assert short == draft.cut(2)


def test_no_draft_without_a_grammar_or_forced_tokens() -> None:
    free = sequence(GrammarSpec("regex", "[01]*"), "01")
    assert GrammarProposer().propose([free, FakeSequence([1, 2])], [8, 8]) == [None, None]


def test_behind_the_forced_run_comes_what_followed_it_before() -> None:
    asked = sequence(GrammarSpec("regex", '(a|b)0": [01]*'), "a", prompt='b0": 0101, ')
    (draft,) = GrammarProposer().propose([asked], [6])
    assert draft is not None
    assert text_of(TOKENIZER, draft.tokens).startswith('0": 0101')
    assert draft.buckets == (0, 0, 0, 3, 3, 3)
    assert draft.survival[2] > 0.97 > draft.survival[3]


def test_state_of_a_sequence_is_freed() -> None:
    proposer, asked = GrammarProposer(), sequence(json_schema(RECORD), "")
    proposer.propose([asked], [8])
    assert proposer._indexes._indexes
    proposer.forget(asked)
    assert not proposer._indexes._indexes
