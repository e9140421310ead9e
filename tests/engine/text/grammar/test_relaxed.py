"""Schemas are written as grammars hold them; what is left out is named."""

import json

import pytest
from jsonschema import Draft202012Validator

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.relaxed import RelaxedSchema, Schema, relaxed
from tests.engine.text.grammar.test_json_schema import SUBJECT, takes
from tests.engine.text.grammar.tiny import json_schema

WHOLE: Schema = {"type": "integer"}
AB: Schema = {"type": "object", "properties": {"a": WHOLE, "b": WHOLE}, "additionalProperties": False}
ANSWERS: tuple[dict[str, int], ...] = ({}, {"a": 1}, {"b": 9}, {"a": 1, "b": 9}, {"a": 1, "b": 2})


@pytest.mark.parametrize(
    "more",
    [
        {"dependentRequired": {"a": ["b"]}},
        {"dependentRequired": {"a": ["b"], "b": ["a"]}},
        {"dependentSchemas": {"a": {"properties": {"b": {"maximum": 5}}, "required": ["b"]}}},
        {"dependentSchemas": {"b": False}},
        {"not": {"required": ["a", "b"]}},
        {"not": {"required": ["b"]}},
        {"oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        {"oneOf": [{"required": ["a"]}, {"required": ["a", "b"]}]},
    ],
)
def test_what_can_be_spelt_otherwise_is_held(more: Schema) -> None:
    held = relaxed({**AB, **more})
    assert not held.checked
    validator = Draft202012Validator({**AB, **more})
    for answer in ANSWERS:
        assert takes(held.schema, json.dumps(answer)) == validator.is_valid(answer), answer


def test_required_names_that_leave_no_choice_are_refused() -> None:
    every = {**AB, "required": ["a", "b"], "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
    with pytest.raises(InvalidGrammar):
        SUBJECT.compile(json_schema(relaxed(every).schema))


def test_dependencies_of_earlier_drafts_are_both() -> None:
    for then in (["b"], {"required": ["b"]}):
        held = relaxed({**AB, "dependencies": {"a": then}}).schema
        assert [takes(held, json.dumps(answer)) for answer in ANSWERS] == [True, False, True, True, True]


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"oneOf": [{"type": "number"}, WHOLE]}, "oneOf"),
        ({"properties": {"x": {"oneOf": [{"$ref": "#/$defs/a"}, WHOLE]}}, "$defs": {"a": WHOLE}}, "properties.x.oneOf"),
        ({"anyOf": [WHOLE], "oneOf": [WHOLE, WHOLE]}, "oneOf"),
        ({"items": {"not": WHOLE}}, "items.not"),
        ({"if": WHOLE, "then": {"minimum": 3}, "else": {"type": "string"}}, "if"),
        ({"type": "array", "contains": WHOLE, "minContains": 2}, "contains"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "array", "items": WHOLE, "uniqueItems": True}, "uniqueItems"),
        ({**AB, "minProperties": 1}, "minProperties"),
        ({"type": "object", "dependentRequired": {str(i): ["x"] for i in range(7)}}, "dependentRequired"),
    ],
)
def test_what_only_a_whole_answer_shows_is_left_to_its_check(schema: Schema, place: str) -> None:
    before = json.dumps(schema)
    held = relaxed(schema)
    assert held.checked == (place,)
    assert SUBJECT.compile(json_schema(held.schema))
    assert json.dumps(schema) == before


def test_what_asks_for_nothing_is_not_checked() -> None:
    for schema in ({"uniqueItems": False}, {"oneOf": [WHOLE]}, {"then": WHOLE}, {"minContains": 2}):
        assert relaxed(schema).checked == ()


def test_unique_items_of_a_list_of_values_are_no_more_than_these() -> None:
    held = relaxed({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True}).schema
    assert takes(held, "[1, 2]")
    assert not takes(held, "[1, 2, 1]")


def test_formats_that_are_not_kept_are_annotations() -> None:
    schema: Schema = {"properties": {"a": {"type": "string", "format": "semver"}, "format": {"format": "date"}}}
    held = relaxed(schema)
    assert held == RelaxedSchema(held.schema, ("properties.a.format semver",))
    assert takes(held.schema, '{"a": "x", "format": "2024-02-29"}')
    assert not takes(held.schema, '{"a": "x", "format": "x"}')


def test_bounds_past_64_bits_come_near() -> None:
    held = relaxed({"type": "integer", "maximum": 1e30, "exclusiveMinimum": -(10**30)}).schema
    assert held == {"type": "integer", "maximum": 2**62, "minimum": -(2**62)}
    assert takes(held, str(-(2**62)))


def test_words_for_readers_do_not_count() -> None:
    words = {"title": "t", "description": "d" * 200_000, "$comment": "c", "examples": [1]}
    assert relaxed({**WHOLE, **words}).schema == WHOLE
    named: Schema = {"properties": {"title": WHOLE, "description": WHOLE}}
    assert relaxed(named).schema == named
