"""What a schema asks for is kept exactly or refused by name; nothing in it turns that off."""

import json
import re
from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Any

import numpy as np
import pytest

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.grammar.matcher import Matcher
from prolepsis.engine.text.grammar.patterns import PATTERNS
from tests.engine.text.grammar.tiny import all_bytes, grammars, json_schema, token_id

TOKENIZER = all_bytes()
SUBJECT = grammars(TOKENIZER)
NULL = {"type": "null"}


def closed(**more: object) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, **more}


def embedded(schema: dict[str, object], *, lenient: bool = False) -> GrammarSpec:
    """Return the schema as constraints embed it in lark."""
    return GrammarSpec("lark", f"start: %json {json.dumps({**schema, 'x-guidance': {'lenient': lenient}})}\n")


def allows(matcher: Matcher, text: str) -> bool:
    """Return whether the masks allow `text`, byte by byte or as forced tokens, as a whole answer."""
    rest = text
    while rest:
        forced = TOKENIZER.decode(list(matcher.forced()))
        if forced and rest.startswith(forced):
            matcher.advance(matcher.forced())
            rest = rest[len(forced) :]
            continue
        token = TOKENIZER.encode(rest[0], add_special_tokens=False).ids[0]
        if matcher.is_over() or not matcher.mask()[token]:
            return False
        matcher.advance([token])
        rest = rest[1:]
    return matcher.is_accepting()


def takes(schema: Mapping[str, object], value: str) -> bool:
    return allows(SUBJECT.compile(json_schema(schema)).matcher(), value)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"properties": {"a" * 40 + "!": {}}, "patternProperties": {"^(a|aa)+$": {}}}, "too long to match with its names"),
    ({"type": "integer", "minimum": 2**53 + 1}, "minimum is 9007199254740993; allowed: finite numbers"),
    ({"properties": {"a": {"maximum": 2**64}}}, "properties.a.maximum is 18446744073709551616"),
    ({"type": "integer", "minimum": -(2**63), "maximum": -5}, "minimum is -9223372036854775808"),
    ({"const": -(2**63)}, "const is -9223372036854775808"),
    ({"$ref": "#/x/const", "x": {"const": {"minimum": -(2**63), "maximum": -1, "type": "integer"}}}, "minimum"),
    ({"enum": [1, [2**54 + 1]]}, r"enum[1][0] is 18014398509481985"),
    ({"type": "number", "maximum": 1e300}, "maximum is 1e+300"),
    ({"type": "string", "minimum": float("inf")}, "minimum is inf"),
    ({"type": "integer", "exclusiveMaximum": 2**60}, "exclusiveMaximum is"),
    ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "#/$defs/a refers to itself"),
    (
        {
            "$defs": {"a": {"anyOf": [NULL, {"$ref": "#/$defs/b"}]}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}},
            **NULL,
            "anyOf": [{"$ref": "#/$defs/b"}],
        },
        "refers to itself",
    ),
    (closed(properties={"x": {"$ref": "#"}}, required=["x"]), "no finite value"),
    ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "no finite value"),
    ({"type": "array", "items": False, "minItems": 1}, "no finite value"),
    ({"x-guidance": {"lenient": True}, "type": "array", "uniqueItems": True}, "keywords that cannot be kept"),
    ({"x-guidance": {"coerce_one_of": True}, "oneOf": [{"type": "number"}, {"type": "integer"}]}, "oneOf"),
    ({"type": "object", "minProperties": 2}, "minProperties is 2"),
    ({"type": "string", "pattern": "^((a{9}){99}){99}$"}, "88209 times in all; allowed: at most 10000"),
    ({"patternProperties": {"(b{200}){200}": NULL}}, "40000 times in all"),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "no text fits"),
]


@pytest.mark.parametrize(("schema", "says"), REFUSED)
def test_what_cannot_be_kept_is_refused_by_name_in_plain_words(schema: dict[str, object], says: str) -> None:
    for spec in (json_schema(schema), embedded(schema)):
        with pytest.raises(InvalidGrammar) as caught:
            SUBJECT.compile(spec)
        message = str(caught.value)
        assert says in message
        assert not re.search(r"llguidance|parser|lexer|SearchRegex|NoExtension|panic", message)


def test_a_refusal_names_the_place_of_the_keyword() -> None:
    with pytest.raises(InvalidGrammar, match=r"contains \(at properties\.a\.contains\)"):
        SUBJECT.compile(json_schema({"properties": {"a": {"contains": NULL}}}))


def test_a_lenient_schema_leaves_out_a_bound_that_cannot_be_kept() -> None:
    schema = {"type": "integer", "minimum": -(2**63), "maximum": 2**64}
    assert allows(SUBJECT.compile(embedded(schema, lenient=True)).matcher(), "-123456789012345678901234567890")


@pytest.mark.parametrize("value", [2**53, -(2**53), 2**60, 2**63 - 1])
def test_whole_numbers_that_are_taken_are_exact(value: int) -> None:
    for schema in ({"type": "integer", "minimum": value, "maximum": value}, {"const": value}):
        assert takes(schema, str(value))
        assert not takes(schema, str(value - 1))
        assert not takes(schema, str(value + 1))


def test_what_has_no_finite_value_is_left_out_where_it_is_optional() -> None:
    endless: dict[str, object] = {"a": closed(properties={"a": {"$ref": "#/$defs/a"}}, required=["a"])}
    assert takes({"$defs": endless, **closed(properties={"x": {"$ref": "#/$defs/a"}, "y": NULL})}, '{"y": null}')
    assert takes({"$defs": endless, "anyOf": [{"$ref": "#/$defs/a"}, NULL]}, "null")
    assert takes({"$defs": endless, "type": "array", "items": {"$ref": "#/$defs/a"}}, "[]")
    tree = {"$defs": {"t": closed(properties={"t": {"anyOf": [{"$ref": "#/$defs/t"}, NULL]}}, required=["t"])}}
    assert takes({**tree, "$ref": "#/$defs/t"}, '{"t": {"t": null}}')


@pytest.mark.parametrize("pattern", ["^score$", "^(score)$", "^s?core$"])
def test_nothing_is_promised_behind_a_comma_that_no_name_can_follow(pattern: str) -> None:
    schema = closed(
        properties={"score": {"multipleOf": 5, "type": "integer"}},
        required=["score"],
        patternProperties={pattern: {"type": "integer", "maximum": 50}},
    )
    assert takes(schema, '{"score": 45}')
    assert not takes(schema, '{"score": 55}')
    assert takes(schema, '{"score": 45, "core": 1}') == (pattern == "^s?core$")


def test_a_dead_end_that_only_a_walk_finds_is_refused() -> None:
    with pytest.raises(InvalidGrammar, match=r"behind 'ac' nothing can follow"):
        SUBJECT.compile(GrammarSpec("lark", 'start: "a" (B | "c" B)\nB: /x/ & /y/\n'))


def test_a_listed_name_has_one_spelling() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert takes(schema, '{"a": 1}')
    assert not takes(schema, r'{"\u0061": "x"}')
    assert takes({"const": "\x01"}, r'"\u0001"'), "control characters have no other spelling"


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("date", ["2024-02-29", "2000-02-29", "0001-01-01", "9999-12-31"],
         ["2023-02-29", "1900-02-29", "0000-01-01", "2024-02-30", "2024-04-31", "2024-13-01"]),
        ("time", ["23:59:59Z", "00:00:00.5+14:00", "12:00:00-13:59"],
         ["23:59:60Z", "24:00:00Z", "12:00:00z", "12:00:00", "12:00:00+14:01", "12:00:00+23:59"]),
        ("date-time", ["2024-02-29T12:00:00Z"], ["2023-02-29T12:00:00Z", "2024-01-01t12:00:00Z", "2024-01-01 1:00Z"]),
        ("duration", ["P1Y2M3D", "PT1H", "P2W", "P1DT1S"], ["P", "PT", "P1W2D", "P9999999D"]),
    ],
)  # fmt: skip
def test_times_are_such_that_strict_parsers_take_them(name: str, good: list[str], bad: list[str]) -> None:
    pattern = PATTERNS[name]
    assert all(re.search(pattern, text) for text in good)
    assert not [text for text in bad if re.search(pattern, text)]
    parse: Any = {"date": date, "time": time, "date-time": datetime}.get(name)
    for text in good if parse else ():
        parse.fromisoformat(text)
    assert takes({"type": "string", "format": name}, json.dumps(good[0]))
    assert not takes({"type": "string", "format": name}, json.dumps(bad[0]))
    assert takes({"type": "string", "format": name, "pattern": f"^{good[0][0]}"}, json.dumps(good[0]))


@pytest.mark.parametrize("schema", [{"type": "number"}, {}, {"type": "number", "minimum": 0}, {"type": "integer"}])
def test_numbers_stay_finite(schema: dict[str, object]) -> None:
    many = "9" * 200
    assert takes(schema, many)
    assert not takes(schema, many + "9" * 120)
    if schema in ({"type": "number"}, {}):
        assert takes(schema, "6.02e+23")
        assert not takes(schema, "1e999")
        assert not takes(schema, "-1.5E-100")


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({}, ["4611686018427387900", "-4611686018427387900", "0"], ["4611686018427388000", "1" + "0" * 300]),
        ({"minimum": 0}, ["100"], ["-100", "1" + "0" * 300]),
        ({"minimum": -500, "maximum": 500}, ["-500"], ["600"]),
    ],
)
def test_multiples_stay_finite(bounds: dict[str, object], good: list[str], bad: list[str]) -> None:
    """A number that must go on to a multiple has no end within a number of digits."""
    schema = {"type": "integer", "multipleOf": 100, **bounds}
    assert [takes(schema, value) for value in good] == [True] * len(good)
    assert [takes(schema, value) for value in bad] == [False] * len(bad)


def test_texts_that_look_like_numbers_are_not_cut() -> None:
    text = f'"x: 1e9999 {"7" * 400}"'
    assert takes({"type": "string"}, text)
    assert takes({"type": "array", "items": {"const": "1e9999"}}, '["1e9999"]')
    assert allows(SUBJECT.compile(GrammarSpec("lark", "start: /(.|\\n)*/")).matcher(), "1e9999")


def test_a_mask_of_a_long_number_still_ends_it() -> None:
    matcher = SUBJECT.compile(json_schema({"type": "array", "items": {"type": "number"}})).matcher()
    matcher.advance([token_id(TOKENIZER, letter) for letter in "[1e99"])
    mask = matcher.mask()
    assert {TOKENIZER.id_to_token(int(token)) for token in np.flatnonzero(mask)} >= {",", "]"}
    assert not mask[token_id(TOKENIZER, "0")]


def test_a_panic_of_the_library_is_the_grammars_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """Stands for the library's, which no public name leads to."""

    def panic(*_: object) -> None:
        raise PanicException("index out of bounds in parser")

    subject = grammars(TOKENIZER)
    monkeypatch.setattr(subject, "_tried", panic)
    with pytest.raises(InvalidGrammar, match="cannot be followed"):
        subject.compile(json_schema({}))
