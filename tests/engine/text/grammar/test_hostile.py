"""Grammars made to hurt: each is refused or followed; none ends the process or fails another sample."""

import json
import random
import subprocess
import sys
from collections.abc import Sequence

import pytest
from llguidance import LLParserLimits

from prolepsis.core.errors import GrammarFailed, InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import Matcher
from prolepsis.engine.text.grammar.source import MAX_SOURCE_BYTES
from tests.engine.text.grammar import tiny

TOKENIZER = tiny.all_bytes()

CHAINS = """
import json, sys
from prolepsis.core.errors import GrammarFailed, InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.source import MAX_SOURCE_BYTES
from tests.engine.text.grammar import tiny

def rules(n): return "start: r0\\n" + "\\n".join(f"r{i}: r{i + 1}" for i in range(n)) + f'\\nr{n}: "a"'
def terminals(n): return "start: R0\\n" + "\\n".join(f'R{i}: R{i + 1} "a"' for i in range(n)) + f'\\nR{n}: "a"'
def refs(n, wrap):
    defs = {f"d{i}": wrap({"$ref": f"#/$defs/d{i + 1}"}) for i in range(n)} | {f"d{n}": {"type": "null"}}
    return json.dumps({"$defs": defs, "$ref": "#/$defs/d0"})
MADE = {
    "rules": ("lark", rules),
    "terminals": ("lark", terminals),
    "refs": ("json_schema", lambda n: refs(n, lambda ref: ref)),
    "properties": ("json_schema", lambda n: refs(n, lambda ref: {"type": "object", "properties": {"a": ref}})),
}
kind, make = MADE[sys.argv[1]]
n = 1
while len(make(n * 5 // 4 + 1)) < MAX_SOURCE_BYTES[kind]:
    n = n * 5 // 4 + 1
grammars = tiny.grammars(tiny.all_bytes())
try:
    matcher = grammars.compile(GrammarSpec(kind, make(n))).matcher()
    for _ in range(8):
        if matcher.is_over():
            break
        allowed = [token for token, may in enumerate(matcher.mask()) if may]
        matcher.advance([allowed[-1]])
except (InvalidGrammar, GrammarFailed) as error:
    print("refused", error)
print("survived")
"""


@pytest.mark.parametrize("chain", ["rules", "terminals", "refs", "properties"])
def test_the_longest_chains_of_names_do_not_end_the_process(chain: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHAINS, chain], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr[-500:]
    assert done.stdout.endswith("survived\n")


def ids(text: str) -> list[int]:
    return [tiny.token_id(TOKENIZER, character) for character in text]


def fed(matcher: Matcher, text: str) -> Matcher:
    for token in ids(text):
        matcher.mask()
        matcher.advance([token])
    return matcher


def test_thousands_of_choices_and_of_optional_properties_are_followed() -> None:
    grammars = tiny.grammars(TOKENIZER)
    choices = json.dumps([f"x{i}" for i in range(4096)])
    assert fed(grammars.compile(GrammarSpec("choice", choices)).matcher(), "x409").is_accepting()
    many = json.dumps({"properties": {f"p{i}": {"type": "null"} for i in range(1500)}, "additionalProperties": False})
    assert fed(grammars.compile(GrammarSpec("json_schema", many)).matcher(), '{"p1').mask().any()


def test_a_grammar_without_any_answer_is_refused_at_once() -> None:
    narrow = LLParserLimits(max_items_in_row=20, verbose_errors=False)
    grammars = Grammars(TOKENIZER.to_str, TOKENIZER.get_vocab_size(), (0,), limits=narrow)
    schema = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(100)}}
    with pytest.raises(InvalidGrammar, match="cannot be compiled: "):
        grammars.compile(GrammarSpec("json_schema", json.dumps(schema)))


@pytest.mark.parametrize(
    "spec",
    [
        GrammarSpec("json_schema", '{"const": "\\ud800"}'),
        GrammarSpec("regex", "a\ud800"),
        GrammarSpec("lark", 'start: "\ud800"'),
        GrammarSpec("lark", "start: " + '"a" ' * MAX_SOURCE_BYTES["lark"]),
    ],
)
def test_text_that_is_none_is_refused(spec: GrammarSpec) -> None:
    with pytest.raises(InvalidGrammar):
        tiny.grammars(TOKENIZER).compile(spec)


def failures(matchers: Sequence[Matcher], num_tokens: int) -> int:
    noises = [random.Random(seed) for seed in range(len(matchers))]
    failed = set[int]()
    for i in range(num_tokens):
        for number, matcher in enumerate(matchers):
            if number in failed or i < number:  # one begins after the other
                continue
            try:
                fed(matcher, noises[number].choice("ab"))
            except GrammarFailed:
                failed.add(number)
    return len(failed)


@pytest.mark.parametrize(("max_states", "num_tokens"), [(300, 40), (600, 60)])
def test_no_sample_fails_for_what_others_of_its_grammar_filled(max_states: int, num_tokens: int) -> None:
    limits = LLParserLimits(max_lexer_states=max_states, verbose_errors=False)
    grammar = Grammars(TOKENIZER.to_str, TOKENIZER.get_vocab_size(), (0,), limits=limits).compile(
        GrammarSpec("regex", "(.*a.{9})")
    )
    assert failures([grammar.matcher()], num_tokens) == 0
    assert failures([grammar.matcher() for _ in range(24)], num_tokens) == 0


def test_a_fault_that_new_tables_do_not_mend_compiles_nothing_again() -> None:
    grammar = tiny.grammars(TOKENIZER).compile(GrammarSpec("regex", "abc"))
    start = grammar.start
    with pytest.raises(GrammarFailed):
        grammar.matcher().advance(ids("x"))
    assert grammar.start is start
