"""GBNF has no lexer: every text of a grammar can be written, character by character and in larger tokens, no other."""

import random
import time

import pytest

from prolepsis.core.errors import GrammarFailed, InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.gbnf import read
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from prolepsis.engine.text.grammar.source import as_lark
from tests.engine.text.grammar import tiny
from tests.engine.text.grammar.gbnf_texts import Texts, is_text

TOKENIZER = tiny.all_bytes()
GRAMMARS = tiny.grammars(TOKENIZER)
NUM_TEXTS = 25


def compiled(grammar: str) -> CompiledGrammar:
    return GRAMMARS.compile(GrammarSpec("lark", as_lark(grammar)))


def may_be_written(grammar: CompiledGrammar, tokens: list[int]) -> bool:
    matcher = grammar.matcher()
    for token in tokens:
        try:
            if matcher.is_over():
                return False
            matcher.advance([token])
        except GrammarFailed:
            return False
    return matcher.is_accepting()


def tokens_of(text: str) -> list[int]:
    return list(TOKENIZER.encode(text, add_special_tokens=False).ids)


OVERLAPS = {
    "white space before a line end": 'root ::= (e "\\n")+\ne ::= [a-z] ws | "(" e ")" ws\nws ::= [ \\n]*',
    "a class that holds what ends it": 'root ::= e ">"\ne ::= [a-z>]* | "<" e ">"',
    "any character": 'root ::= e .\ne ::= "x"* | "(" e ")"',
    "words inside of names": 'root ::= e (" in " e | "s"?)\ne ::= [a-z ]+ | "(" e ")"',
    "a name and a longer one": 'root ::= ("ab" | "a" root "b" | "abc" root | [abc] "!") root?',
    "numbers without a mark between": 'root ::= e [0-9]{2}\ne ::= [0-9]+ | "(" e ")"',
    "counts that overlap": 'root ::= e "a"{1,2}\ne ::= [ab]{2,4} | "(" e ")"',
    "letters of several bytes": 'root ::= e "é"\ne ::= [é-ü猫]+ | "(" e ")" | [^é]',
    "two kinds of recursion": 'root ::= root "+" root | "(" root ")" | [0-9]+ ws\nws ::= ([ \\t] ws)?',
    "recursion at the end": 'root ::= item rest\nrest ::= "," item rest | ""\nitem ::= [a-z,]+',
    "recursion at the start": 'root ::= root "," item | item\nitem ::= [a-z]* | "(" root ")"',
    "palindromes": 'root ::= "a" root "a" | "b" root "b" | [ab]?',
    "empty parts": 'root ::= (a? b*){2} (root "c")?\na ::= "x" | ""\nb ::= ("y"?){2}',
    "quotes and escapes": 'root ::= "[" str ("," str)* "]"\nstr ::= "\\"" ([^"\\\\] | "\\\\" . | root)* "\\""',
    "lines of code": 'root ::= (s ws)+\ns ::= "if" ws s | name ws "=" ws name ";"\nname ::= [a-z]+\nws ::= [ \\n]*',
}


@pytest.mark.parametrize("kind", OVERLAPS)
def test_texts_of_a_grammar_are_its_texts(kind: str) -> None:
    rules, grammar, rng = read(OVERLAPS[kind]), compiled(OVERLAPS[kind]), random.Random(kind)
    texts = Texts(rules)
    for number in range(NUM_TEXTS):
        text = texts.draw(rng, depth=(4, 8, 12)[number % 3])
        for tokens in (tokens_of(text), [token for char in text for token in tokens_of(char)]):
            assert may_be_written(grammar, tokens), text
        place = rng.randrange(len(text) + 1)
        for other in (
            text[:place],
            text[:place] + text[place + 1 :],
            text[:place] + rng.choice("ab>\n ") + text[place:],
        ):
            if len(other) < 60:
                assert may_be_written(grammar, tokens_of(other)) == is_text(rules, other), other


def test_what_needs_no_characters_of_its_own_is_one_lexeme() -> None:
    lark = as_lark('root ::= "[" word ("," ws word)* "]"\nword ::= "\\"" [^"]* "\\""\nws ::= [ \\t\\n]*')
    assert lark.count("start: T0\n") == 1
    assert "T1" not in lark


@pytest.mark.parametrize(
    "grammar",
    [
        "root ::= " + "(" * 3000 + '"a"' + ")" * 3000,
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nr3000 ::= "a"',
        "root ::= r0\n" + "\n".join(f'r{i} ::= r{i + 1} | "a" root' for i in range(2000)) + '\nr2000 ::= "a"',
        "root ::= " + '"a"? root? ' * 4000,
        "root ::= " + '"a" ' * 20_000,
        "root ::= <no-token>",
        "root ::= <[99999999]>",
        "root ::= root",
        "root ::= part{1,2000}\npart ::= ([a-z] [0-9]?){1,2000}",
    ],
)
def test_a_grammar_made_to_hurt_is_refused_soon(grammar: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidGrammar, match=r"^the (grammar|lark) "):
        compiled(grammar)
    assert time.process_time() - started < 30


def test_a_token_that_the_model_lacks_is_named() -> None:
    for token, says in (("<no-token>", "<no-token> is no token of the model"), ("<[999999]>", "has no token 999999")):
        with pytest.raises(InvalidGrammar, match=says):
            compiled(f"root ::= {token}")


def test_tokens_are_named_as_the_model_has_them() -> None:
    grammar = compiled(f'root ::= <[{tiny.token_id(TOKENIZER, "true")}]> "a"')
    assert may_be_written(grammar, tokens_of("truea"))
    assert not may_be_written(grammar, [tiny.token_id(TOKENIZER, char) for char in "truea"])
