"""What compiles, what is refused and why, and how long compiled grammars are kept."""

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLParserLimits

from prolepsis.core.errors import InvalidGrammar, UserError
from prolepsis.core.requests import GrammarKind, GrammarSpec
from prolepsis.engine.text.grammar import source
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.matcher import CompiledGrammar
from tests.engine.text.grammar.tiny import EOS, all_bytes, grammars, token_id

TOKENIZER = all_bytes()
SUBJECT = grammars(TOKENIZER)


@pytest.mark.parametrize(
    ("kind", "text", "says"),
    [
        ("json_schema", "[1", "the json_schema is not JSON"),
        ("json_schema", "[" * 100_000, "the json_schema is not JSON"),
        ("json_schema", "3", "the json_schema is 3; allowed: a JSON object"),
        ("json_schema", '{"type": "colour"}', "colour"),
        ("json_schema", '{"$ref": "https://elsewhere.test/schema"}', "elsewhere"),
        (
            "json_schema",
            '{"type": "string", "pattern": "(a"}',
            "regex parse error: unclosed group; allowed: JSON Schema",
        ),
        ("json_schema", '{"type": "array", "uniqueItems": true}', "uniqueItems"),
        ("json_schema", "false", "the json_schema is false"),
        ("choice", "yes", "the choice is not JSON"),
        ("choice", '{"a": 1}', 'the choice is {"a": 1}; allowed: a JSON list of non-empty strings'),
        ("choice", '["a", ""]', "non-empty strings"),
        ("choice", "[]", "the choice has 0 strings; allowed: 1 to"),
        ("regex", "(a", "regex parse error: unclosed group; allowed: a regular expression"),
        ("regex", "(?=a)b", "without look-around"),
        ("lark", 'begin: "a"', "with a rule named start"),
        ("lark", "start: /(/", "the lark cannot be compiled"),
        ("lark", 'start: %json {"$ref": "#/x"}', "the json_schema cannot be compiled: Pointer '/x' does not exist"),
        ("lark", "start: " + '"a" ' * 16_400, "the lark has 65607 bytes; allowed: at most 65536"),
        ("regex", "a" * (source.MAX_SOURCE_BYTES["regex"] + 1), "bytes; allowed: at most"),
    ],
)
def test_a_grammar_that_cannot_be_compiled_is_refused_with_a_reason(kind: GrammarKind, text: str, says: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        SUBJECT.compile(GrammarSpec(kind, text))
    assert says in str(caught.value)
    assert isinstance(caught.value, UserError)
    assert (caught.value.param, caught.value.code) == ("grammar", "invalid_grammar")


def test_schemas_inside_of_a_grammar_have_the_bound_of_schemas() -> None:
    wide = {"enum": ["x" * 1000 + str(i) for i in range(100)]}
    assert SUBJECT.compile(GrammarSpec("lark", f"start: %json {json.dumps(wide)}"))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", "true"),
        ("json_schema", "{}"),
        ("json_schema", '{"type": "object"}'),
        ("json_schema", '{"x-guidance": {"whitespace_flexible": true}, "type": "array"}'),
        ("choice", '["one", "two \\"quoted\\"", "\\u00fc\\n"]'),
        ("regex", r"\d{4}-\d{2}-\d{2}"),
        ("lark", 'start: "call " %json {"type": "object"}'),
    ],
)
def test_every_kind_compiles(kind: GrammarKind, text: str) -> None:
    assert SUBJECT.compile(GrammarSpec(kind, text)).matcher().mask().any()


def test_the_librarys_limits_are_the_callers_to_know_of() -> None:
    tight = Grammars(TOKENIZER.to_str, TOKENIZER.get_vocab_size(), (EOS,), limits=LLParserLimits(max_grammar_size=10))
    with pytest.raises(InvalidGrammar, match=r"the json_schema cannot be compiled: .*size"):
        tight.compile(GrammarSpec("json_schema", '{"type": "object"}'))


def test_a_schema_cannot_bring_back_unbounded_whitespace() -> None:
    spec = GrammarSpec("json_schema", '{"x-guidance": {"whitespace_flexible": true}, "type": "array"}')
    matcher = SUBJECT.compile(spec).matcher()
    open_bracket, blank = token_id(TOKENIZER, "["), token_id(TOKENIZER, "Ġ")
    assert not matcher.mask()[blank]
    assert not matcher.mask([open_bracket])[blank]


def test_the_most_recently_used_stay_and_what_is_held_is_found_again() -> None:
    subject = grammars(TOKENIZER, max_compiled=2)
    specs = [GrammarSpec("choice", f'["{i}"]') for i in range(4)]
    held = subject.compile(specs[0])
    subject.compile(specs[1])
    again = subject.compile(specs[0])
    subject.compile(specs[2])
    subject.compile(specs[3])
    assert again is held
    assert subject.compile(specs[0]) is held  # neither of the two most recent, but held
    del held, again
    for spec in specs[1:]:
        subject.compile(spec)
    gc.collect()
    assert set(subject._held) == set(specs[2:])


class Counting(Grammars):
    """Counts and slows compilations."""

    num_compiled = 0

    def _compile(self, spec: GrammarSpec) -> CompiledGrammar:
        self.num_compiled += 1
        time.sleep(0.05)
        return super()._compile(spec)


def test_a_spec_is_compiled_once_however_many_ask_and_failures_reach_them_all() -> None:
    subject = Counting(TOKENIZER.to_str, TOKENIZER.get_vocab_size(), (EOS,))
    barrier = threading.Barrier(6)

    def ask(spec: GrammarSpec) -> CompiledGrammar:
        barrier.wait()
        return subject.compile(spec)

    with ThreadPoolExecutor(6) as pool:
        assert len(set(pool.map(ask, [GrammarSpec("regex", "a+")] * 6))) == 1
        assert subject.num_compiled == 1
        for done in [pool.submit(ask, GrammarSpec("regex", "(")) for _ in range(6)]:
            with pytest.raises(InvalidGrammar):
                done.result()
    assert not subject._in_work


def test_a_tokenizer_the_library_cannot_read_is_the_grammars_fault_not_a_crash() -> None:
    with pytest.raises(InvalidGrammar, match="cannot be used with this model's tokenizer"):
        Grammars(lambda: "{}", 10, (0,)).compile(GrammarSpec("regex", "a"))
