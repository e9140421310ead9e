"""References of parts that have a base or a name of their own lead there from the root."""

import json

import pytest

from prolepsis.engine.text.grammar.references import leads_nowhere, rooted
from prolepsis.engine.text.grammar.relaxed import Schema, held_form
from tests.engine.text.grammar.test_json_schema import takes

WHOLE: Schema = {"type": "integer"}
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DATED = {
    "$id": "http://a.org/d/part.json",
    "definitions": {"n": WHOLE},
    "properties": {"n": {"$ref": "#/definitions/n"}},
}
TREE: Schema = {"$id": "tree", "properties": {"v": WHOLE, "t": {"$ref": "#"}}, "required": ["v"]}


@pytest.mark.parametrize(
    ("schema", "held", "refused"),
    [
        ({"properties": {"p": DATED}}, '{"p": {"n": 1}}', '{"p": {"n": "x"}}'),
        ({"properties": {"p": TREE}}, '{"p": {"v": 1, "t": {"v": 2}}}', '{"p": {"v": 1, "t": {"p": {"v": 1}}}}'),
        ({"$id": "http://a.org/x", "$defs": {"n": {"$id": "y", **WHOLE}}, "$ref": "y"}, "1", '"x"'),
        ({"$id": "http://a.org/x", "$defs": {"n": WHOLE}, "$ref": "http://a.org/x#/$defs/n"}, "1", '"x"'),
        ({"$defs": {"a/b c%": {"$anchor": "n", **WHOLE}}, "$ref": "#n"}, "1", '"x"'),
        ({"$defs": {"d": {"$id": "urn:x:d", "$defs": {"n": {"$id": "#n", **WHOLE}}, "$ref": "#n"}}, "$ref": "urn:x:d"},
         "1", '"x"'),
        ({"$schema": DRAFT_4, "definitions": {"n": {"id": "#n", **WHOLE}}, "properties": {"p": {"$ref": "#n"}}},
         '{"p": 1}', '{"p": "x"}'),
        ({"$schema": DRAFT_4, "properties": {"a": {"id": "http://a.org/a", "type": "object"}}},
         '{"a": {"x": [{"y": 1}]}}', '{"a": 1}'),
        ({"properties": {"p": {"$id": "http://a.org/p", "$ref": "#/$defs/n"}}, "$defs": {"n": WHOLE}}, '{"p": 1}',
         '{"p": "x"}'),
        ({"properties": {"$id": WHOLE, "id": WHOLE}}, '{"$id": 1, "id": 2}', '{"$id": "x"}'),
        ({"enum": [{"$id": "x", "$ref": "#"}]}, '{"$id": "x", "$ref": "#"}', "1"),
    ],
)  # fmt: skip
def test_parts_with_a_base_of_their_own_keep_their_references(schema: Schema, held: str, refused: str) -> None:
    before = json.dumps(schema)
    made = held_form(schema)
    assert not made.unknown
    assert takes(made.schema, held)
    assert not takes(made.schema, refused)
    assert json.dumps(schema) == before
    assert rooted(rooted(schema)) == rooted(schema)


@pytest.mark.parametrize(
    ("reference", "lost"),
    [("#", False), ("#/$defs/n", False), ("#/$defs/m", True), ("#n", True), ("https://a.org/x", True), ("//[", True),
     (DRAFT_4, False), (7, False)],
)  # fmt: skip
def test_references_that_lead_out_of_the_document_are_known(reference: object, lost: bool) -> None:
    schema: Schema = {"$defs": {"n": WHOLE}, "properties": {"p": {"$ref": reference}}}
    assert leads_nowhere(rooted(schema), reference) is lost
    assert bool(held_form(schema).unknown) is lost
