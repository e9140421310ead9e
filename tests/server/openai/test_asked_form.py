"""The form that a body asks for: its grammar, what is checked at the end, and what is named as lost."""

import json
from typing import Any

import pytest

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.errors import InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.server.openai.asked_form import asked_form
from prolepsis.server.openai.bodies import CompletionBody
from tests.server.openai.test_constraint import accepts

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FORM = GrammarSpec("json_schema", json.dumps(SCHEMA))


def body(**changes: Any) -> CompletionBody:
    return parse_body(json.dumps({"model": "m", "prompt": "x", **changes}).encode(), CompletionBody)


@pytest.mark.parametrize(
    ("changes", "spec"),
    [
        ({}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec("json_schema", '{"type": "object"}')),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA, "strict": True},
                }
            },
            FORM,
        ),
        ({"structured_outputs": {"json": SCHEMA}}, FORM),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, FORM),
        ({"structured_outputs": {"regex": "a+"}}, GrammarSpec("regex", "a+")),
        ({"structured_outputs": {"choice": ["é", "b"]}}, GrammarSpec("choice", '["é", "b"]')),
        ({"structured_outputs": {"grammar": "start: /a/"}}, GrammarSpec("lark", "start: /a/")),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec("json_schema", '{"type": "object"}')),
    ],
)
def test_asked_forms(changes: dict[str, object], spec: GrammarSpec | None) -> None:
    assert asked_form(body(**changes)).grammar == spec


@pytest.mark.parametrize(
    ("spelling", "value", "form"),
    [
        ("guided_json", SCHEMA, "json"),
        ("guided_json", json.dumps(SCHEMA), "json"),
        ("json_schema", SCHEMA, "json"),
        ("guided_regex", "a+", "regex"),
        ("regex", "a+", "regex"),
        ("guided_choice", ["a", "b"], "choice"),
        ("guided_grammar", "start: /a/", "grammar"),
        ("grammar", 'root ::= "a"', "grammar"),
        ("ebnf", 'root ::= "a"', "grammar"),
    ],
)
def test_foreign_spellings_of_a_form_are_that_form(spelling: str, value: object, form: str) -> None:
    assert asked_form(body(**{spelling: value})) == asked_form(body(structured_outputs={form: value}))


def test_two_spellings_together_are_refused() -> None:
    with pytest.raises(RequestRefused, match="needs exactly one of"):
        body(guided_regex="a", guided_choice=["a"])
    with pytest.raises(RequestRefused, match="needs exactly one of"):
        body(structured_outputs={"regex": "a"}, guided_choice=["a"])
    assert body(guided_regex="").structured_outputs is None


def test_gbnf_is_read_as_lark() -> None:
    spec = asked_form(body(grammar='root ::= item ("," item)*\nitem ::= [a-c]{2} | "x"\n')).grammar
    for text, fits in (("ab", True), ("ab,x,cc", True), ("abc", False), ("ad", False)):
        assert accepts(spec, text) == fits
    with pytest.raises(InvalidGrammar, match="no GBNF"):
        asked_form(body(grammar='root ::= ("a"'))


def test_tags_stand_in_free_text() -> None:
    tag = {"begin": "<f=now>", "schema": SCHEMA, "end": "</f>"}
    asked = {"type": "structural_tag", "structures": [tag], "triggers": ["<f="]}
    for value in (asked, json.dumps(asked)):
        spec = asked_form(body(structured_outputs={"structural_tag": value})).grammar
        for text in ("", "no tag", 'So <f=now>{"city": "Ulm"}</f> and <f=now>{"city": ""}</f> bye'):
            assert accepts(spec, text), text
        for text in ("<f=other>", "<f=now>{}</f>", '<f=now>{"city": "Ulm"} bye'):
            assert not accepts(spec, text), text
    with pytest.raises(InvalidParameter, match=r"structures\[0\].begin is '<f=now>'"):
        asked_form(body(structural_tag={**asked, "triggers": ["<g="]}))


LISTED = {"type": "object", "properties": {"a": {"type": "integer"}}}


def test_objects_are_closed_unless_the_server_or_the_request_opens_them() -> None:
    more = '{"a": 1, "b": 2}'
    by_format = body(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": LISTED}})
    assert not accepts(asked_form(by_format).grammar, more)
    assert accepts(asked_form(by_format, open_objects=True).grammar, more)
    for closes in (True, False):
        stated = body(structured_outputs={"json": LISTED, "disable_additional_properties": closes})
        for setting in (True, False):
            assert accepts(asked_form(stated, open_objects=setting).grammar, more) is not closes


def test_what_is_not_held_is_named() -> None:
    schema = {"type": "array", "items": {"type": "string", "format": "semver"}, "uniqueItems": True}
    asked = asked_form(body(guided_json=schema))
    assert asked.warnings == ("without effect: items.format semver", "checked at the end: uniqueItems")
    assert asked.checked == schema
    assert asked_form(body(guided_json=LISTED)).checked is None
