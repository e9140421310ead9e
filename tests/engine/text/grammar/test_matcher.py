"""A matcher's answers are a function of the tokens alone, and the right one."""

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLParserLimits, LLTokenizer
from tokenizers import Tokenizer

from prolepsis.core.errors import GrammarFailed
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar, Matcher
from tests.engine.text.grammar.tiny import EOS, RECORD, all_bytes, few_tokens, grammars, json_schema, text_of, token_id

BYTES = all_bytes()
FEW = few_tokens()
GRAMMARS: Grammars = grammars(BYTES)
PERSON = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 6}, "true": {"type": "boolean"}},
        "required": ["name", "true"],
        "additionalProperties": False,
    }
)
CALLS = """%llguidance {}
start: (open body)* TEXT
open[lazy]: TEXT "<c>"
body: %json {"type": "object", "properties": {"name": {"enum": ["true", "name"]}}, "required": ["name"]} "</c>"
TEXT: /(.|\\n)*/
"""
SPECS = (
    PERSON,
    GrammarSpec("regex", "(ab|a)*[0-9]{2,5}"),
    GrammarSpec("lark", 'start: "a" start "b" | "0"'),
    GrammarSpec("lark", CALLS),
)


def compiled(spec: GrammarSpec) -> CompiledGrammar:
    return GRAMMARS.compile(spec)


def walk(matcher: Matcher, rng: random.Random, limit: int = 60) -> list[int]:
    """Return a random path that the grammar allows, to its end or `limit` tokens."""
    path: list[int] = []
    marks = [token_id(BYTES, letter) for letter in "<c>{/"]
    while not matcher.is_over(path) and len(path) < limit:
        mask = matcher.mask(path)
        likely = [mark for mark in marks if mark < len(mask) and mask[mark]] if rng.random() < 0.7 else []
        path.append(int(rng.choice(likely or np.flatnonzero(mask).tolist())))
    return path


@given(which=st.integers(0, len(SPECS) - 1), seed=st.integers(0, 2**32), data=st.data())
def test_answers_depend_on_the_tokens_and_not_on_the_questions_before(
    which: int, seed: int, data: st.DataObject
) -> None:
    grammar, rng = compiled(SPECS[which]), random.Random(seed)
    asked = grammar.matcher()
    paths = [walk(asked, rng, 25) for _ in range(3)]
    committed = data.draw(st.integers(0, len(paths[0])))
    asked.advance(paths[0][:committed])
    branches = [paths[0][committed:], walk(asked, rng, 10), walk(asked, rng, 10)]
    for _ in range(12):
        branch = rng.choice(branches)
        path = branch[: rng.randint(0, len(branch))]
        fresh = grammar.matcher()
        fresh.advance([*paths[0][:committed], *path])
        assert asked.is_over(path) == fresh.is_over()
        assert np.array_equal(asked.mask(path), fresh.mask())
        assert asked.is_accepting(path) == fresh.is_accepting()
        if rng.random() < 0.3:
            other = grammar.matcher()
            other.advance(paths[0][:committed])
            assert asked.forced() == other.forced()


CHOICES = ["a", "ab", "abab0", "name", "named", "true", "0101", 'a"b', "ü"]


@pytest.mark.parametrize("tokenizer", [BYTES, FEW], ids=["bytes", "few"])
def test_masks_of_a_finite_language_equal_those_by_enumeration(tokenizer: Tokenizer) -> None:
    choices = [c for c in CHOICES if tokenizer is BYTES or set(c) <= set('ab01"')]
    matcher = grammars(tokenizer).compile(GrammarSpec("choice", json.dumps(choices))).matcher()
    words = [choice.encode() for choice in choices]
    spelling = LLTokenizer(tokenizer.to_str(), eos_token=EOS)
    texts = {i: spelling.decode_bytes([i]) for i in range(1, tokenizer.get_vocab_size())}
    bytes_of = {i: text for i, text in texts.items() if text}  # byte 255, never part of UTF-8, is the library's own
    rng, seen = random.Random(3), set()
    for _ in range(60):
        path: list[int] = []
        while True:
            done = b"".join(bytes_of.get(t, b"") for t in path)
            rests = [word[len(done) :] for word in words if word.startswith(done)]
            mask = {int(t) for t in np.flatnonzero(matcher.mask(path))}
            possible = {t for t, spelled in bytes_of.items() if any(rest.startswith(spelled) for rest in rests)}
            possible |= {EOS} if b"" in rests else set()
            assert mask
            assert mask <= possible
            if len({rest[:1] for rest in rests}) > 1:  # no byte is forced
                assert mask == possible
            assert matcher.is_accepting(path) == (b"" in rests)
            assert matcher.is_over(path) == (rests == [b""])
            if EOS in mask and (len(mask) == 1 or rng.random() < 0.5):
                seen.add(done.decode())
                break
            path.append(rng.choice(sorted(mask - {EOS})))
    assert len(seen) >= len(choices) - 2


@given(seed=st.integers(0, 2**32))
def test_accepted_prefix_of_a_chain(seed: int) -> None:
    rng = random.Random(seed)
    matcher = grammar_of(PERSON).matcher()
    path = walk(matcher, rng)
    done = rng.randint(0, len(path))
    matcher.advance(path[:done])
    rest = path[done:]
    if not rest:
        assert matcher.accepted([EOS]) == 0  # over: nothing follows, not even an end
        return
    assert matcher.accepted(rest) == len(rest)
    at = rng.randrange(len(rest))
    banned = np.flatnonzero(~matcher.mask(rest[:at]))
    wrong = [*rest[:at], int(rng.choice(banned.tolist())), *rest[at:]]
    assert at <= matcher.accepted(wrong) <= len(rest)
    if not forced_somewhere(matcher, rest[: at + 1]):
        assert matcher.accepted(wrong) == at


def forced_somewhere(matcher: Matcher, path: Sequence[int]) -> bool:
    return any(matcher.mask(path[:i]).sum() == 1 for i in range(len(path) + 1))


def grammar_of(spec: GrammarSpec) -> CompiledGrammar:
    return compiled(spec)


def test_forced_tokens_are_what_the_masks_leave() -> None:
    matcher = grammar_of(PERSON).matcher()
    forced = matcher.forced()
    assert text_of(BYTES, forced) == '{"name": "'[: len(text_of(BYTES, forced))]
    assert len(forced) >= 2
    for i, token in enumerate(forced):
        assert np.flatnonzero(matcher.mask(forced[:i])).tolist() == [token]
    matcher.advance(forced)
    assert matcher.forced() == ()
    assert matcher.mask().sum() > 1


def test_an_answer_may_end_where_it_is_accepted_and_must_where_it_cannot_go_on() -> None:
    matcher = grammars(FEW).compile(GrammarSpec("regex", "0[01]{0,2}")).matcher()
    zero = token_id(FEW, "0")
    assert not matcher.mask()[EOS]
    matcher.advance([zero])
    assert matcher.mask()[EOS]
    assert matcher.accepted([zero, EOS, zero]) == 2
    assert matcher.accepted([EOS]) == 1
    assert not matcher.is_over([zero])
    assert matcher.is_over([zero, EOS])
    assert matcher.is_over([zero, zero])
    assert np.flatnonzero(matcher.mask([zero, zero])).tolist() == [EOS]
    assert not matcher.is_over()
    matcher.advance([zero, zero, EOS])
    assert matcher.is_over()
    assert matcher.forced() == ()


def test_ignored_ends_are_allowed_only_where_nothing_else_is() -> None:
    grammar = grammars(FEW).compile(GrammarSpec("regex", "0[01]{0,2}"))
    matcher, zero = grammar.matcher(ignore_eos=True), token_id(FEW, "0")
    assert not matcher.mask([zero])[EOS]
    assert matcher.accepted([zero, EOS]) == 1
    assert np.flatnonzero(matcher.mask([zero, zero, zero])).tolist() == [EOS]


def test_a_token_outside_the_grammar_fails_and_stays_failed() -> None:
    matcher = grammars(FEW).compile(GrammarSpec("regex", "0+")).matcher()
    with pytest.raises(GrammarFailed, match="gave up after 0 tokens"):
        matcher.advance([token_id(FEW, "a")])
    with pytest.raises(GrammarFailed):
        matcher.mask()


def test_every_random_walk_ends_in_the_language() -> None:
    import jsonschema

    grammar = grammars(FEW).compile(json_schema(RECORD))
    texts = set()
    for seed in range(40):
        matcher = grammar.matcher()
        path = walk(matcher, random.Random(seed), 80)
        assert matcher.is_over(path)
        text = text_of(FEW, path)
        jsonschema.validate(json.loads(text), RECORD)
        assert text == json.dumps(json.loads(text))  # one line, spaced as JSON_STYLE says
        texts.add(text)
    assert len(texts) > 20


@pytest.mark.parametrize("can_rollback", [True, False])
def test_a_grammar_that_cannot_take_tokens_back_is_read_again(can_rollback: bool) -> None:
    grammar = grammars(BYTES).compile(PERSON)
    assert grammar.can_rollback
    grammar.can_rollback = can_rollback
    matcher = grammar.matcher()
    path = walk(matcher, random.Random(5), 30)
    matcher.advance(path[:3])
    for end in (9, 4, 12, 0):
        fresh = grammar_of(PERSON).matcher()
        fresh.advance(path[: 3 + end])
        assert np.array_equal(matcher.mask(path[3 : 3 + end]), fresh.mask())


def test_a_text_has_one_verdict_in_one_piece_and_token_by_token() -> None:
    """A lexer that has spent what one step may fails every sample of the grammar, until its tables are new."""
    many_states = GrammarSpec("regex", "(a|b)*a(a|b){40}c")
    limits = LLParserLimits(step_lexer_fuel=3000, max_lexer_states=200_000)
    subject = Grammars(BYTES.to_str, BYTES.get_vocab_size(), (EOS,), limits=limits)
    text = "".join(random.Random(0).choices("ab", k=12_000)) + "a" * 41 + "c"
    tokens = BYTES.encode(text, add_special_tokens=False).ids
    whole, others = subject.compile(many_states).matcher(), subject.compile(many_states).matcher()
    whole.advance(tokens)
    assert whole.is_accepting()
    others.advance(tokens[:100])
    by_token = subject.compile(many_states).matcher()
    for token in tokens[:2000]:
        assert by_token.mask()[token]
        by_token.advance([token])
    others.advance(tokens[100:2000])
    assert np.array_equal(others.mask(), by_token.mask())


def test_no_sample_fails_for_what_others_made_the_lexer_learn() -> None:
    many_states = GrammarSpec("regex", "(a|b)*a(a|b){60}c")
    subject = Grammars(BYTES.to_str, BYTES.get_vocab_size(), (EOS,), limits=LLParserLimits(max_lexer_states=3000))
    grammar, rng = subject.compile(many_states), random.Random(1)
    first, others = grammar.start, [grammar.matcher() for _ in range(3)]
    for seed in range(60):
        fresh = subject.compile(many_states).matcher()
        matcher = rng.choice([*others, fresh])
        path = walk(matcher, random.Random(seed), 40)
        assert matcher.accepted(path) == len(path)
    assert grammar.start is not first
    for matcher in others:
        alone = Grammars(BYTES.to_str, BYTES.get_vocab_size(), (EOS,)).compile(many_states).matcher()
        assert np.array_equal(matcher.mask(), alone.mask())
