"""The form that a body asks for: its grammar, what is checked at the end, and what is named as lost."""

import json
from typing import Any

import pytest

from prolepsis.control.web.body_reader import parse_body
from prolepsis.control.web.errors import RequestRefused
from prolepsis.core.errors import InvalidGrammar, InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.server.preparing.asked import asked_form
from prolepsis.server.preparing.bodies import CompletionBody
from tests.server.preparing.test_constraint import accepts

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
    with pytest.raises(InvalidParameter, match=r"structural_tag.tags\[0\].begin is '<f=now>'"):
        asked_form(body(structural_tag={**asked, "triggers": ["<g="]}))


def tag(begin: str, content: object, end: str = "") -> dict[str, object]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


WHOLE = {"type": "json_schema", "json_schema": {"type": "integer", "maximum": 9}}
ANY: dict[str, object] = {"type": "any_text"}
AB = [tag("<a>", WHOLE, "</a>"), tag("<b>", ANY, "</b>")]


def const(value: str) -> dict[str, object]:
    return {"type": "const_string", "value": value}


def sequence(*elements: object) -> dict[str, object]:
    return {"type": "sequence", "elements": list(elements)}


@pytest.mark.parametrize(
    ("form", "held", "refused"),
    [
        (const("yes"), ["yes"], ["no"]),
        (WHOLE, ["7"], ["77", '"x"']),
        ({"type": "regex", "pattern": "[ab]+"}, ["abba"], ["c"]),
        ({"type": "grammar", "grammar": 'root ::= "x" | "y"'}, ["x"], ["z"]),
        (ANY, ["", "any"], []),
        (sequence(const("<t>"), ANY, const("</t>"), WHOLE), ["<t>why</t>3"], ["<t>why3", "<t>why</t>x"]),
        (sequence(ANY, tag("<a>", WHOLE, "</a>")), ["so <a>1</a>"], ["so", "so <a>x</a>"]),
        ({"type": "or", "elements": [const("a"), WHOLE]}, ["a", "3"], ["b"]),
        (tag("<b>", ANY, "</b>"), ["<b>x</b>"], ["<b>x"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": AB}, ["", "t <a>1</a> u <b>v</b> w"],
         ["<c>", "<a>x</a>"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": AB, "at_least_one": True}, ["t <a>1</a> u"], ["t"]),
        ({"type": "triggered_tags", "triggers": ["<"], "tags": AB, "stop_after_first": True}, ["t", "t <a>1</a>"],
         ["<a>1</a> u"]),
        (sequence({"type": "triggered_tags", "triggers": ["<a"], "tags": AB[:1]}, const("END")), ["x <a>1</a> END"],
         ["x <a>1</a>"]),
        ({"type": "tags_with_separator", "tags": AB, "separator": ", "}, ["", "<a>1</a>, <b>x</b>"],
         ["<a>1</a> <b></b>"]),
        ({"type": "tags_with_separator", "tags": AB, "separator": ",", "at_least_one": True, "stop_after_first": True},
         ["<a>1</a>"], ["", "<a>1</a>,<a>1</a>"]),
    ],
)  # fmt: skip
def test_formats_of_structural_tags(form: object, held: list[str], refused: list[str]) -> None:
    asked = {"type": "structural_tag", "format": form}
    for given in ({"structured_outputs": {"structural_tag": asked}}, {"response_format": asked}):
        spec = asked_form(body(**given)).grammar
        assert [accepts(spec, text) for text in (*held, *refused)] == [True] * len(held) + [False] * len(refused)


@pytest.mark.parametrize(
    ("form", "named"),
    [
        ({"type": "token"}, "format.type is 'token'; allowed: const_string, json_schema"),
        ({**ANY, "excludes": ["x"]}, r"format.excludes is .*allowed: a any_text with no more"),
        ({**WHOLE, "style": "qwen_xml"}, "format.style is 'qwen_xml'"),
        ({"type": ["tag"]}, "format.type is "),
        ({"type": "sequence", "elements": ["tag"]}, r"elements\[0\].type is 'None'"),
        ({"type": "const_string"}, "format.value is 'None'"),
        (sequence(ANY, WHOLE), r"elements\[0\] is 'free text'; allowed: before a const_string"),
        ({"type": "or", "elements": []}, r"elements is '\[\]'; allowed: a list of at least one"),
        ({"type": "triggered_tags", "triggers": ["#"], "tags": AB}, r"tags\[0\].begin is '<a>'; allowed: a text"),
        ({**AB[0], "end": ["</a>", "</b>"]}, "format.end is"),
    ],
)
def test_formats_that_cannot_be_kept_are_named(form: object, named: str) -> None:
    with pytest.raises(InvalidParameter, match=named):
        asked_form(body(structured_outputs={"structural_tag": {"type": "structural_tag", "format": form}}))


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
