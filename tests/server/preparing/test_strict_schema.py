"""What `strict` takes of JSON Schema."""

import pytest

from prolepsis.core.errors import InvalidParameter
from prolepsis.server.preparing.asked import check_strict

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array"}, "root"),
        ({"anyOf": [SCHEMA]}, "root"),
        ({"type": "object", "properties": {}}, "additionalProperties"),
        ({**SCHEMA, "required": []}, "'city'"),
        ({**SCHEMA, "properties": {"city": {"type": "object"}}}, "S.properties.city"),
        ({**SCHEMA, "properties": {"city": {"allOf": [{}]}}}, "allOf"),
        ({**SCHEMA, "$defs": {"x": {"type": ["object", "null"]}}}, "S.$defs.x"),
    ],
)
def test_schemas_outside_the_strict_subset(schema: dict[str, object], named: str) -> None:
    with pytest.raises(InvalidParameter, match=named.replace("$", r"\$")):
        check_strict(schema, "S")


def test_a_strict_schema_passes() -> None:
    inner = {"type": ["object", "null"], "properties": {}, "required": [], "additionalProperties": False}
    nested = {**SCHEMA, "properties": {"city": {"anyOf": [{"$ref": "#/$defs/x"}, {"type": "null"}]}}}
    check_strict({**nested, "$defs": {"x": inner}}, "S")
