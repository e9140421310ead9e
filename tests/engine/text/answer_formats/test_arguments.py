"""Arguments of random schemas in every form: what the grammar allows is read as a call that its schema allows."""

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jsonschema
import llguidance
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.formats import AnswerFormats
from prolepsis.engine.text.answer_formats.table import ROWS, TOOL_FORMATS
from prolepsis.engine.text.answer_formats.tool_format import Call, ToolFormat
from prolepsis.engine.text.grammar.source import llguidance_source
from prolepsis.server.preparing.asked import ToolUse, tool_use
from prolepsis.server.preparing.bodies import ToolBody
from prolepsis.server.preparing.constraint import constraint
from tests.engine.text.answer_formats.reading import read_all

BYTES = llguidance.LLTokenizer("byte")
Schema = dict[str, Any]
NAMES = ("get", "get_time", "get_t")
KEYS = ("a", "ab", "name", "größe", "x-y", "xml:lang", "first name", "type", "arguments")
TEXTS = (
    "a",
    "b\nc",
    "<x>",
    "true",
    "1",
    "null",
    'it\'s "q"',
    "<tool_call>",
    "</parameter>",
    "",
    " lead",
    "trail\n",
    "{}",
)
VALUES = (1, 2.5, None, True, "1", "null", "True", "None", [1, "a"], {"a": 1}, -0.5)
MOST_BYTES = 700


def any_schema(draw: random.Random, depth: int = 0) -> Schema:
    made: list[Schema] = [
        {"type": "string", **draw.choice([{}, {"maxLength": 4}, {"minLength": 1, "maxLength": 3}])},
        {"type": draw.choice(["integer", "number"]), **draw.choice([{}, {"minimum": 0, "maximum": 20}])},
        {"type": draw.choice(["boolean", "null"])},
        {"type": "string", "enum": draw.sample(TEXTS, 3)},
        {"enum": draw.sample(VALUES, 3)},
        {"const": draw.choice([1, None, True, "x y", {"q": ["z"]}])},
        {"type": draw.sample(["string", "integer", "null", "boolean"], 2)},
    ]
    if depth < 2:
        inner = any_schema(draw, depth + 1)
        bounds = draw.choice([{}, {"maxItems": 2}, {"minItems": 1, "maxItems": 3}])
        made += [{"type": "array", "items": inner, **bounds}, any_object(draw, depth + 1), {"$ref": "#/$defs/p"}, {}]
        made.append({"anyOf": [inner, any_schema(draw, depth + 1)]})
    return draw.choice(made)


def any_object(draw: random.Random, depth: int) -> Schema:
    keys = draw.sample(KEYS, draw.randrange(4))
    parts = {"properties": {key: any_schema(draw, depth) for key in keys}, "required": keys[: draw.randrange(4)]}
    return {"type": "object", **parts, "additionalProperties": False}


def bodies(schemas: Mapping[str, Schema | None]) -> list[ToolBody]:
    functions = [{"name": name, **({"parameters": one} if one else {})} for name, one in schemas.items()]
    return [ToolBody.model_validate({"type": "function", "function": one}) for one in functions]


def grammar(form: ToolFormat, use: ToolUse) -> llguidance.LLMatcher:
    spec = constraint(None, use, formats=AnswerFormats(form))
    assert isinstance(spec, GrammarSpec)
    matcher = llguidance.LLMatcher(BYTES, llguidance_source(spec))
    assert not matcher.is_error(), matcher.get_error()
    return matcher


def accepts(form: ToolFormat, use: ToolUse, text: str) -> bool:
    matcher = grammar(form, use)
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def generated(matcher: llguidance.LLMatcher, draw: random.Random) -> str | None:
    """Return a random text of the grammar; None: it has not ended, or is no UTF-8."""
    written = bytearray()
    while not matcher.is_stopped() and not (matcher.is_accepting() and draw.random() < 0.5):
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [int(byte) for byte in np.flatnonzero(bits[:256])]
        usual = [
            byte for byte in allowed if byte in (b"\"]}<>'\n|/ptavce=l._r" if len(written) > 60 else range(32, 127))
        ]
        byte = draw.choice(usual if usual and draw.random() < 0.9 else allowed)
        assert matcher.consume_token(byte)
        written.append(byte)
        if len(written) > MOST_BYTES:
            return None
    try:
        return written.decode()
    except UnicodeDecodeError:
        return None


def read(form: ToolFormat, parts: Sequence[str], use: ToolUse) -> tuple[str, list[tuple[str, str]]]:
    parser = AnswerParser(AnswerFormats(form), functions=use.functions, parallel=use.parallel, required=use.required)
    found = read_all(parser, parts)
    return found.content, found.calls


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
@settings(max_examples=4)
@given(draw=st.randoms(use_true_random=False))
def test_what_is_allowed_is_read_as_valid(form: ToolFormat, draw: random.Random) -> None:
    schemas: dict[str, Schema | None] = {name: any_object(draw, 0) for name in draw.sample(NAMES, 2)}
    schemas = {name: one and {**one, "$defs": {"p": any_object(draw, 2)}} for name, one in schemas.items()}
    use = tool_use(bodies(schemas | {"x": None}), "required", draw.choice([None, False]))
    try:
        text = generated(grammar(form, use), draw)
    except InvalidParameter:
        return
    if text is None:
        return
    content, calls = read(form, [text], use)
    assert (content, calls) == read(form, list(text), use)
    assert not content
    assert calls, text
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), schemas.get(name) or {"type": "object", "maxProperties": 0})
    free = tool_use(bodies(schemas | {"x": None}), "auto", use.parallel)
    assert accepts(form, free, text)
    if not form.at_start:
        assert read(form, [f"Hi.{text}"], free) == ("Hi.", calls)
    for end in range(0, len(text), 9):
        read(form, [text[:end]], use)


def one(form: str, properties: Schema) -> tuple[ToolFormat, ToolUse]:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return TOOL_FORMATS[form], tool_use(bodies({"f": schema}), "required", None)


@pytest.mark.parametrize("form", ["pythonic", "gemma4", "lfm2", "qwen3-coder"])
def test_names_that_are_no_words_are_read(form: str) -> None:
    row, use = one(form, {"x-y": {"type": "integer"}, "@id": {"type": "object", "properties": {"größe": {}}}})
    text = row.write([Call("f", {"x-y": 2, "@id": {"größe": "a"}})])
    assert accepts(row, use, text)
    assert [json.loads(arguments) for _, arguments in read(row, [text], use)[1]] == [{"x-y": 2, "@id": {"größe": "a"}}]


def test_names_inside_of_quotes_may_be_any() -> None:
    row, use = one("pythonic", {"a": {"type": "object", "properties": {"first name": {"type": "string"}}}})
    assert accepts(row, use, "[f(a={'first name': 'x'})]")


@pytest.mark.parametrize(("form", "key"), [("gemma4", "a:b"), ("gemma4", "a,b"), ("glm", "a b"), ("pythonic", "a,b")])
def test_names_that_would_be_read_otherwise_are_refused(form: str, key: str) -> None:
    with pytest.raises(InvalidParameter, match=f"the argument '{key}' of tool 'f' cannot be written"):
        constraint(None, one(form, {key: {}})[1], formats=AnswerFormats(TOOL_FORMATS[form]))


@pytest.mark.parametrize("form", ["pythonic", "gemma4", "glm", "qwen3-coder", "hermes"])
def test_lengths_of_texts_are_kept(form: str) -> None:
    row, use = one(form, {"a": {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 1}})
    assert accepts(row, use, row.write([Call("f", {"a": ["abc", "\n\\"]})]))
    assert not accepts(row, use, row.write([Call("f", {"a": ["abcd"]})]))


def test_no_control_character_stands_in_a_text_of_python() -> None:
    row, use = one("pythonic", {"a": {"type": "string"}})
    assert not accepts(row, use, "[f(a='\x00')]")
    assert accepts(row, use, row.write([Call("f", {"a": "\x00\x7f\n"})]))


@pytest.mark.parametrize("form", ["minimax", "minicpm", "qwen3-coder"])
@pytest.mark.parametrize("value", ["1", "None", 2.5, [1]])
def test_a_value_is_read_as_the_one_that_is_listed(form: str, value: object) -> None:
    row, use = one(form, {"a": {"anyOf": [{"enum": ["1", 2.5]}, {"const": "None"}, {"type": "array"}]}})
    text = row.write([Call("f", {"a": value})])
    assert json.loads(read(row, [text], use)[1][0][1]) == {"a": value}


def test_a_quoted_section_is_one_in_values_of_several_types_only_at_their_start() -> None:
    row, use = one("minicpm", {"a": {"type": ["string", "null"]}, "b": {"type": "string"}})
    text = '<function name="f"><param name="a"><![CDATA[<x>]]></param><param name="b">x<![CDATA[</param></function>'
    for parts in ([text], list(text)):
        assert json.loads(read(row, parts, use)[1][0][1]) == {"a": "<x>", "b": "x<![CDATA["}


@pytest.mark.parametrize(("form", "end"), [("gemma4", '<|"|>'), ("glm-tight", "</arg_value>")])
def test_listed_texts_that_would_end_too_soon_are_left_out(form: str, end: str) -> None:
    row, use = one(form, {"a": {"enum": [f"x{end}y", "z"]}})
    assert not accepts(row, use, row.write([Call("f", {"a": f"x{end}y"})]))
    assert accepts(row, use, row.write([Call("f", {"a": "z"})]))
    with pytest.raises(InvalidParameter, match="an argument's only values"):
        constraint(None, one(form, {"a": {"const": f"x{end}y"}})[1], formats=AnswerFormats(row))


@pytest.mark.parametrize("form", ["qwen3-coder", "glm", "minicpm", "pythonic"])
def test_references_that_come_back_to_themselves_end(form: str) -> None:
    node = {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}, {"type": "integer"}]}
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/node"}}, "$defs": {"node": node}}
    row, use = TOOL_FORMATS[form], tool_use(bodies({"f": schema}), "required", None)
    assert constraint(None, use, formats=AnswerFormats(row)) is not None
    for value in (None, 2):
        assert json.loads(read(row, [row.write([Call("f", {"a": value})])], use)[1][0][1]) == {"a": value}


@pytest.mark.parametrize("form", ["qwen3-coder", "kimi-k3", "pythonic"])
def test_an_argument_without_a_value_is_refused(form: str) -> None:
    with pytest.raises(InvalidParameter, match=r"an argument's only values"):
        constraint(None, one(form, {"a": {"enum": []}})[1], formats=AnswerFormats(TOOL_FORMATS[form]))
