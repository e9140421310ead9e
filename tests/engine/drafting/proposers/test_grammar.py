from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.drafting.proposers.grammar import GrammarProposer
from prolepsis.engine.text.grammar.matcher import Matcher
from tests.engine.drafting.sequences import FakeSequence
from tests.engine.text.grammar.tiny import RECORD, few_tokens, grammars, json_schema, text_of

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
