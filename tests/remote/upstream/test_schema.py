"""Schemas over llama.cpp: what it drops is refused, and what it answers is checked within bounds."""

import json
from typing import Any

import pytest

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.remote.upstream.capabilities import check_request
from prolepsis.remote.upstream.schema import broken, not_held
from tests.remote.upstream.fakes import request


@pytest.mark.parametrize("pattern", [r"^\d{4}$", r"^\w+$", r"^a\b", r"^(?=a).*$", r"^\p{L}$", r"^(a)\1$"])
def test_a_pattern_that_it_drops_is_refused_by_name(pattern: str) -> None:
    schema = {"type": "object", "properties": {"year": {"type": "string", "pattern": pattern}}}
    asked = request(grammar=GrammarSpec("json_schema", json.dumps(schema)))
    with pytest.raises(InvalidGrammar, match=r"llama\.cpp drops: pattern") as refused:
        check_request(asked, "llama.cpp")
    assert "allowed: written out" in str(refused.value)
    check_request(asked, "vllm")


@pytest.mark.parametrize(
    ("schema", "found"),
    [
        ({"pattern": "^[0-9]{4}$"}, False),
        ({"pattern": r"^a\.b\-c$"}, False),
        ({"properties": {"pattern": {"type": "string"}, "patternProperties": {"type": "object"}}}, False),
        ({"enum": [{"pattern": r"\d"}]}, False),
        ({"$defs": {"pattern": {"pattern": r"\d"}}}, True),
        ({"anyOf": [{"items": {"patternProperties": {"^a": {}}}}]}, True),
    ],
)
def test_what_is_held_is_not_refused(schema: Any, found: bool) -> None:
    assert (not_held(schema) is not None) == found


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
        ({"$ref": "http://10.0.0.9/schema.json"}, "1", "could not be checked"),  # nothing is fetched
        ({"type": 7}, "1", "could not be checked"),
    ],
)
def test_an_answer_is_checked_within_bounds(schema: Any, answer: str, fault: str | None) -> None:
    found = broken(schema, answer)
    assert (found is None) if fault is None else fault in (found or "")
