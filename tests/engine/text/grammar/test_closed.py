"""Objects without a word on other properties are closed, and invented names are bounded."""

import json
from time import process_time

import pytest

from prolepsis.engine.text.grammar.closed import MAX_INVENTED, MAX_NAME, Schema, closed
from prolepsis.engine.text.grammar.relaxed import relaxed
from tests.engine.text.grammar.test_json_schema import takes

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


def side(name: str, **more: object) -> Schema:
    return {"type": "object", "properties": {name: WHOLE}, **more}


def inside(place: str, schema: Schema) -> Schema:
    """Return a schema of an object or array that holds `schema` at one place."""
    kinds: dict[str, Schema] = {
        "property": {"type": "object", "properties": {"p": schema}},
        "pattern": {"type": "object", "patternProperties": {"^p$": schema}},
        "other": {"type": "object", "additionalProperties": schema},
        "items": {"type": "array", "items": schema},
        "first": {"type": "array", "prefixItems": [schema]},
        "old first": {"type": "array", "items": [schema]},
        "deeper": {"type": "object", "properties": {"p": {"type": "array", "items": schema}}},
    }
    return kinds[place]


AB, ABC = '{"a": 1, "b": 2}', '{"a": 1, "b": 2, "c": 3}'
PLACES = {"items": "[%s]", "first": "[%s]", "old first": "[%s]", "deeper": '{"p": [%s]}'}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        *((one, one) for one in ("property", "pattern", "other", "items", "first", "old first", "deeper")),
        ("property", "pattern"), ("property", "other"), ("pattern", "other"), ("items", "first"),
        ("items", "old first"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("required", [True, False])
def test_what_holds_together_for_an_inner_object_is_closed_as_one(first: str, second: str, required: bool) -> None:
    more = {"required": ["a"]} if required else {}
    schema: Schema = {"allOf": [inside(first, side("a", **more)), inside(second, side("b"))]}
    at = PLACES.get(first, '{"p": %s}')
    made = closed(schema)
    assert takes(made, at % AB)
    assert not takes(made, at % ABC)


BOTH: Schema = {"a": side("x"), "b": side("y")}
XY, XYZ = '{"p": {"x": 1, "y": 2}}', '{"p": {"x": 1, "y": 2, "z": 3}}'


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "#/$defs/l"}, {"$ref": "#/$defs/r"}]},
        {"$ref": "#/$defs/l", "properties": {"p": side("y")}},
        {"properties": {"p": side("x")}, "anyOf": [{"properties": {"p": side("y")}}, {"required": ["q"]}]},
        {"properties": {"p": side("x")}, "oneOf": [{"properties": {"p": side("y"), "k": {"const": 1}}}]},
        {"properties": {"p": {"allOf": [side("x")]}}, "allOf": [{"properties": {"p": {"$ref": "#/$defs/y"}}}]},
        {"properties": {"p": {"$ref": "#/$defs/x"}}, "patternProperties": {"p": {"$ref": "#/$defs/y"}}},
        {"properties": {"p": side("x")}, "dependentSchemas": {"p": {"properties": {"p": side("y")}}}},
        {"properties": {"p": side("x")}, "dependencies": {"p": {"properties": {"p": side("y")}}}},
        {"properties": {"p": side("x")}, "if": {"required": ["p"]}, "then": {"properties": {"p": side("y")}}},
        {"allOf": [{"allOf": [{"properties": {"p": side("x")}}]}, {"allOf": [{"properties": {"p": side("y")}}]}]},
        {"properties": {"p": {"if": side("x"), "then": side("y"), "properties": {"x": WHOLE}}}},
    ],
)  # fmt: skip
def test_each_way_of_holding_together_is_known(schema: Schema) -> None:
    defs = {"x": side("x"), "y": side("y"), "l": inside("property", side("x")), "r": inside("property", side("y"))}
    made = relaxed(closed({"type": "object", **schema, "$defs": defs})).schema
    assert takes(made, XY)
    assert not takes(made, XYZ)


def test_each_of_several_choices_is_closed_to_its_own_names() -> None:
    kinds = [{"properties": {"k": {"const": name}, "p": side(name)}, "required": ["k"]} for name in "ab"]
    made = closed({"type": "object", "properties": {"k": True, "p": side("x")}, "anyOf": kinds})
    for answer, held in (('{"k": "a", "p": {"x": 1, "a": 2}}', True), ('{"k": "a", "p": {"x": 1, "b": 2}}', False)):
        assert takes(made, answer) == held


def test_a_schema_that_others_share_takes_the_names_of_each() -> None:
    base = {"properties": {"p": side("a")}}
    one, two = ({"allOf": [{"$ref": "#/$defs/base"}, inside("property", side(name))]} for name in "xy")
    made = closed({"$defs": {"base": base}, "type": "object", "properties": {"one": one, "two": two}})
    for answer, held in (
        ('{"one": {"p": {"a": 1, "x": 2}}, "two": {"p": {"a": 1, "y": 2}}}', True),
        ('{"one": {"p": {"a": 1, "y": 2}}}', False),
        ('{"two": {"p": {"a": 1, "z": 2}}}', False),
    ):
        assert takes(made, answer) == held


def test_unevaluated_properties_close_too() -> None:
    schema: Schema = {"allOf": [side("a"), side("b")], "unevaluatedProperties": False}
    assert takes(relaxed(closed(schema)).schema, AB)
    assert not takes(relaxed(closed(schema)).schema, ABC)


@pytest.mark.parametrize("name", ["any-json-value", "x"])
def test_bounds_of_invented_names_need_no_name_of_the_client(name: str) -> None:
    schema: Schema = {"$defs": {name: WHOLE}, "type": "object", "properties": {"n": {"$ref": f"#/$defs/{name}"}}}
    schema["properties"]["m"] = {"type": "object"}  # type: ignore[index]
    assert takes(schema, '{"n": 1, "m": {"x": ["text"]}}')
    assert not takes(schema, '{"n": "text"}')


def test_maps_that_hold_together_keep_their_values() -> None:
    grabs = {"type": "object", "additionalProperties": {}}
    schema: Schema = {"properties": {"p": grabs}, "patternProperties": {"^[a-z]+$": grabs}, "type": "object"}
    assert takes(schema, '{"p": {"x": [1, {"y": null}]}, "q": {"z": 1}}')
    assert not takes(schema, '{"p": 1}')


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
