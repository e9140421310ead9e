"""Objects without a word on other properties are closed, and invented names are bounded."""

import json
from time import process_time

import pytest

from prolepsis.engine.grammar.closed import MAX_INVENTED, MAX_NAME, Schema, closed
from tests.engine.grammar.test_json_schema import takes

WHOLE: Schema = {"type": "integer"}
TREE: Schema = {
    "$defs": {"n": {"properties": {"v": WHOLE, "l": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}},
    "$ref": "#/$defs/n",
}
BASE: Schema = {
    "definitions": {"base": {"type": "object", "properties": {"a": WHOLE}, "required": ["a"]}},
    "allOf": [{"$ref": "#/definitions/base"}, {"properties": {"b": WHOLE}}],
}
KINDS: Schema = {
    "type": "object",
    "properties": {"k": WHOLE},
    "required": ["k"],
    "anyOf": [{"properties": {"a": WHOLE}, "required": ["a"]}, {"properties": {"b": WHOLE}, "required": ["b"]}],
}


@pytest.mark.parametrize(
    ("schema", "held", "closed_out"),
    [
        ({"type": "object", "properties": {"a": WHOLE}}, '{"a": 1}', '{"a": 1, "b": 1}'),
        ({"properties": {"a": WHOLE}, "required": ["a", "b"]}, '{"a": 1, "b": 1}', '{"a": 1, "b": 1, "c": 1}'),
        (TREE, '{"v": 1, "l": [{"v": 2}]}', '{"v": 1, "l": [{"v": 2, "x": 1}]}'),
        (BASE, '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'),
        (KINDS, '{"k": 1, "a": 2}', '{"k": 1, "a": 2, "c": 3}'),
        ({"anyOf": [KINDS, {"type": "object", "properties": {"z": WHOLE}}]}, '{"z": 1}', '{"z": 1, "y": 1}'),
    ],
)  # fmt: skip
def test_an_object_that_lists_names_has_no_others(schema: Schema, held: str, closed_out: str) -> None:
    before = json.dumps(schema)
    assert takes(schema, held)
    assert takes(schema, closed_out)
    assert takes(closed(schema), held)
    assert not takes(closed(schema), closed_out)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object"},
        {"type": "object", "properties": {"a": WHOLE}, "additionalProperties": True},
        {"type": "object", "properties": {"a": WHOLE}, "patternProperties": {"^x": WHOLE}},
        {"allOf": [{"properties": {"a": WHOLE}}, {"type": "object", "additionalProperties": WHOLE}]},
        {"properties": {"a": WHOLE}, "minProperties": 1},
        {"type": "string"},
    ],
)
def test_what_says_more_of_names_stays_as_it_is(schema: Schema) -> None:
    assert closed(schema) == schema


@pytest.mark.parametrize("values", [{}, {"additionalProperties": WHOLE}])
def test_invented_names_are_bounded(values: Schema) -> None:
    schema: Schema = {"type": "object", "required": ["own"], **values}
    names = ["own", *(f"n{i}" for i in range(MAX_INVENTED + 1))]
    assert takes(schema, json.dumps(dict.fromkeys(names[:-1], 1)))
    assert not takes(schema, json.dumps(dict.fromkeys(names, 1)))
    assert takes(schema, json.dumps({"own": 1, "n" * MAX_NAME: 1}))
    assert not takes(schema, json.dumps({"own": 1, "n" * (MAX_NAME + 1): 1}))


def test_invented_names_inside_of_any_value_are_bounded_too() -> None:
    inner = dict.fromkeys((f"n{i}" for i in range(MAX_INVENTED)), 1)
    for value, held in ((inner, True), (inner | {"n": 1}, False), ("text", True), (None, True), ([1.5, [True]], True)):
        assert takes({"type": "object"}, json.dumps({"a": [value]})) == held


def test_a_stated_number_of_names_holds() -> None:
    schema: Schema = {"type": "object", "maxProperties": 1, "additionalProperties": WHOLE}
    assert takes(schema, '{"a": 1}')
    assert not takes(schema, '{"a": 1, "b": 1}')


@pytest.mark.parametrize("backwards", [False, True])
def test_long_chains_of_references_take_no_square_of_time(backwards: bool) -> None:
    last = 3000
    names = range(last, -1, -1) if backwards else range(last + 1)
    chain: Schema = {str(i): {"$ref": f"#/$defs/{min(i + 1, last)}", "required": ["a"]} for i in names}
    chain[str(last)] = {"type": "object", "properties": {"a": WHOLE}}
    schema: Schema = {
        "$defs": chain,
        "properties": {f"p{i}": {"$ref": "#/$defs/0", "minItems": 1} for i in range(1000)},
    }
    began = process_time()
    assert closed(schema)["additionalProperties"] is False
    assert process_time() - began < 5.0
