"""Schemas over llama.cpp: what it drops is refused."""

import json
from typing import Any

import pytest

from prolepsis.adapters.upstream.capabilities import check_request, not_held
from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from tests.adapters.upstream.fakes import request


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
