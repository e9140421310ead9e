"""Marks that are one added token of a model are text to a grammar; control tokens are not."""

import json

import numpy as np
import pytest

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarKind, GrammarSpec
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import Matcher
from prolepsis.engine.text.grammar.vocabulary import GrammarVocabulary
from tests.engine.models.files.byte_level import byte_level

TOKENIZER = byte_level("")
EOS = TOKENIZER.vocab["</s>"]
SUBJECT = Grammars(TOKENIZER.to_json, TOKENIZER.vocab_size, (EOS,))
CALL, CALL_END, END = (TOKENIZER.vocab[mark] for mark in ("<tool_call>", "</tool_call>", "<|im_end|>"))


def matcher(kind: GrammarKind, source: str) -> Matcher:
    return SUBJECT.compile(GrammarSpec(kind, source)).matcher()


def written(matcher: Matcher) -> list[int]:
    """Return the answer of a grammar that leaves no choice."""
    tokens: list[int] = []
    while not matcher.is_over():
        forced = matcher.forced() or (int(np.flatnonzero(matcher.mask())[0]),)
        matcher.advance(forced)
        tokens += forced
    return tokens


@pytest.mark.parametrize(
    ("kind", "source", "before"),
    [
        ("lark", 'start: TEXT "<tool_call>x"\nTEXT: /[^<]*/', "a "),
        ("lark", 'start: open* TEXT\nopen[lazy]: TEXT "<tool_call>"\nTEXT: /(.|\\n)*/', "a < b"),
        ("regex", "a<tool_call>b|a<b", "a"),
        ("choice", '["<tool_call>", "no"]', ""),
        ("json_schema", '{"type": "string"}', '"a'),
    ],
)
def test_a_mark_is_allowed_wherever_the_grammar_has_its_text(kind: GrammarKind, source: str, before: str) -> None:
    subject = matcher(kind, source)
    subject.advance(TOKENIZER.encode(before))
    mask = subject.mask()
    assert mask[CALL]
    assert not mask[END]
    assert subject.accepted([CALL]) == 1
    subject.advance([CALL])
    assert subject.mask().any()


def test_a_mark_is_not_allowed_elsewhere() -> None:
    assert not matcher("regex", "<tool>|a").mask()[CALL]
    assert not matcher("regex", "<tool_call>|a").mask()[CALL_END]


def test_a_dead_end_behind_a_mark_is_found_before_an_answer() -> None:
    with pytest.raises(InvalidGrammar, match="behind '<tool_call>c' nothing can follow"):
        matcher("lark", 'start: "<tool_call>" (B | "c" B)\nB: /x/ & /y/\n')


def test_a_forced_text_has_its_marks_as_the_tokenizer_writes_them() -> None:
    text = '<tool_call>\n{"name": "f"}\n</tool_call>'
    found = written(matcher("choice", json.dumps([text])))
    assert found == TOKENIZER.encode(text)
    assert (found[0], found[-1]) == (CALL, CALL_END)


@pytest.mark.parametrize("text", ["a <|im_end|> b", "</s>", "<|im_end|><tool_call>"])
def test_a_forced_text_that_reads_like_a_control_token_is_text(text: str) -> None:
    found = written(matcher("json_schema", json.dumps({"enum": [text]})))
    assert TOKENIZER.special_token_ids.isdisjoint(found)
    assert TOKENIZER.decode(found) == json.dumps(text)


@pytest.mark.parametrize("name", ["<tool_call>", "<|im_end|>"])
def test_a_grammar_may_name_a_token(name: str) -> None:
    subject = matcher("lark", f'start: {name} "b" // not "{name}')
    assert np.flatnonzero(subject.mask()).tolist() == [TOKENIZER.vocab[name]]
    assert subject.forced() == (TOKENIZER.vocab[name], TOKENIZER.vocab["b"])


def test_only_names_of_tokens_are_replaced() -> None:
    subject = GrammarVocabulary(TOKENIZER.to_json(), TOKENIZER.vocab_size, (EOS,))
    source = 'start: <tool_call> "<tool_call>\\"<think>" /<think>\\/<think>/ <|im_end|> <[3]> // <think>\n'
    source += '%json {"<think>": 1}'
    assert subject.lark(source) == source.replace("<tool_call>", f"<[{CALL}]>", 1)
    hard = 'start: "' + '\\"' * 20_000
    assert subject.lark(hard) == hard
