"""Whole answers are checked by their schema within bounds."""

import json
from typing import Any

import pytest

from prolepsis.engine.text.grammar.patterns import is_checkable, is_found, is_held, matches
from prolepsis.engine.text.grammar.validation import broken


def doubling(depth: int) -> dict[str, Any]:
    """Return a small schema that stands for one of 2 ** depth parts."""
    defs: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(depth)}
    return {"$ref": "#/$defs/d0", "$defs": {**defs, f"d{depth}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "answer", "fault"),
    [
        ({"multipleOf": 3}, "9", None),
        ({"multipleOf": 3}, "10", "10 is not a multiple of 3"),
        ({"type": "array", "uniqueItems": True}, "[1, 1]", "non-unique"),
        ({}, "[" * 100_000, "it is no JSON"),
        ({"pattern": "^(a|aa)+$"}, json.dumps("a" * 60 + "!"), "could not be checked: TimeoutError"),
        (doubling(40), '"x"', "could not be checked: _TooLong"),
        (
            {"patternProperties": {"^(a|aa)+$": {}}},
            json.dumps({"a" * 60 + "!": 1}),
            "could not be checked: TimeoutError",
        ),
        ({"patternProperties": {"^a": {"type": "null"}}}, '{"ab": 1}', "$.ab: 1 is not of type 'null'"),
        ({"patternProperties": {"^a": True}, "additionalProperties": False}, '{"ab": 1, "b": 1}', "'b' is not listed"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "null"}}, '{"a": 1, "b": 1}', "$.b: 1 is not"),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"a": 1}', None),
        ({"properties": {"a": {}}, "unevaluatedProperties": False}, '{"b": 1}', "Unevaluated properties"),
        (
            {"unevaluatedProperties": False, "$defs": {"x": {"patternProperties": {"^a": True}}}},
            "{}",
            "could not be checked: NotImplementedError",
        ),
        ({"pattern": "^a$"}, json.dumps("a\n"), "does not match"),
        ({"pattern": r"^\d$"}, json.dumps("٣"), "does not match"),
        ({"pattern": r"^(?!x)(?<n>\p{L})\k<n>[^]$"}, json.dumps("éé\n"), None),
        ({"$schema": "http://json-schema.org/draft-04/schema#", "maximum": 1, "exclusiveMaximum": True}, "1", "1 is"),
        ({"$ref": "http://10.0.0.9/schema.json"}, "1", "could not be checked"),  # nothing is fetched
        ({"type": 7}, "1", "could not be checked"),
    ],
)
def test_an_answer_is_checked_within_bounds(schema: Any, answer: str, fault: str | None) -> None:
    found = broken(schema, answer)
    assert (found is None) if fault is None else fault in (found or "")


EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


@pytest.mark.parametrize(
    ("pattern", "held", "checkable"),
    [
        ("^a$", True, True), (r"\p{L}+", True, True), ("^a{2,}|b", True, True), ("a{0}b&~", True, True),
        (EMAIL, False, True), (r"^\bfoo\b$", False, True), (r"(a)\1", False, True), ("(?<=a)b", False, True),
        ("(", False, False), (r"\q", False, False), ("(a{1,1000}){1,1000}", False, True),
    ],
)  # fmt: skip
def test_what_a_grammar_holds(pattern: str, held: bool, checkable: bool) -> None:
    assert is_held(pattern) is held
    assert is_checkable([pattern]) is checkable


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (EMAIL, "a.b@c.de", True), (EMAIL, "a..b@c.de", False), (EMAIL, "a@c.de\n", False), ("^a$", "a\n", False),
        ("^[$]$", "$", True), (r"^\$$", "$", True), ("^[[]$", "[", True), (r"^[\]$]$", "$", True),
        (r"^\d\w$", "1a", True), (r"^\d$", "٣", False), (r"^\w$", "é", False), (r"^\p{L}$", "é", True),
        (r"^\s$", "\xa0", True), (r"^[\s]$", "\xa0", True), (r"^\S$", "\xa0", False), ("^[^]$", "\n", True),
        (r"^\u{1F600}$", "😀", True), (r"^(?<x>a|b)\k<x>$", "bb", True), (r"^(?<x>a|b)\k<x>$", "ab", False),
    ],
)  # fmt: skip
def test_a_text_is_found_as_by_clients(pattern: str, text: str, found: bool) -> None:
    assert matches(pattern, text) is found


def test_a_pattern_that_takes_too_long_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        is_found("^(a|aa)+$", "a" * 60 + "!")
    assert not is_found("(", "a")
