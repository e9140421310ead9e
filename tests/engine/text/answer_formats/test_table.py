"""Calls in every form: what is written is what the grammar accepts, and what is read is what was called."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import llguidance
import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.formats import ROWS as REASONING
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, ReasoningFormat, Thinking
from prolepsis.engine.text.answer_formats.table import ROWS
from prolepsis.engine.text.answer_formats.tool_format import Call, ToolFormat
from prolepsis.server.preparing.asked import tool_use
from prolepsis.server.preparing.bodies import ToolBody
from prolepsis.server.preparing.constraint import constraint
from tests.engine.text.answer_formats.reading import read_all

BYTES = llguidance.LLTokenizer("byte")
PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["lat"],
    "additionalProperties": False,
}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "place": {"$ref": "#/$defs/place"},
        "unit": {"enum": ["C", "F"]},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"place": PLACE},
}
BODIES = [
    ToolBody.model_validate({"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}),
    ToolBody.model_validate({"type": "function", "function": {"name": "now"}}),
    ToolBody.model_validate({"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}),
]
FUNCTIONS = tool_use(BODIES, "auto", None).functions
CITY = {"city": 'Köln "Süd" it\'s <b> \\ {x}', "days": 2, "exact": True}
WHOLE = {**CITY, "place": {"lat": -1.5, "tags": ["a", "b c"]}, "unit": "C", "note": None}
CALLS = (Call("get_weather", CITY, "aBcDeFgH1"), Call("now", {}, "123456789"), Call("get_weather", WHOLE, "aaaaaaaa1"))


def accepts(spec: GrammarSpec | None, text: str) -> bool:
    assert spec is not None
    matcher = llguidance.LLMatcher(BYTES, spec.source)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def read(
    form: ToolFormat, parts: Sequence[str], thinking: Thinking = Thinking.NONE, reasoning: ReasoningFormat | None = None
) -> tuple[str, str, list[tuple[str, object]]]:
    """Return content, reasoning and calls of an answer."""
    parser = AnswerParser(AnswerFormats(form, reasoning), thinking, FUNCTIONS)
    found = read_all(parser, parts)
    return found.content, found.reasoning, [(name, json.loads(arguments)) for name, arguments in found.calls]


def called(calls: Sequence[Call]) -> list[tuple[str, object]]:
    return [(call.name, call.arguments) for call in calls]


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
@pytest.mark.parametrize("calls", [CALLS[:1], CALLS[1:2], CALLS[2:], CALLS], ids=["one", "none", "all", "three"])
def test_what_is_written_is_allowed_and_read(form: ToolFormat, calls: Sequence[Call]) -> None:
    if len(calls) > 1 and not form.parallel:
        pytest.skip("the form has one call an answer")
    text = form.write(calls)
    for use in (tool_use(BODIES, "required", None), tool_use(BODIES, "auto", None)):
        assert accepts(constraint(None, use, formats=AnswerFormats(form)), text)
    assert read(form, [text]) == read(form, list(text)) == ("", "", called(calls))


def test_the_other_text_between_name_and_arguments_is_read_too() -> None:
    form = next(row for row in ROWS if row.also)
    text = form.write(CALLS[:1]).replace(form.middle, form.also)
    assert text != form.write(CALLS[:1])
    assert form.also in form.texts, "its tokens would be hidden"
    assert accepts(constraint(None, tool_use(BODIES, "required", None), formats=AnswerFormats(form)), text)
    assert read(form, [text]) == read(form, list(text)) == ("", "", called(CALLS[:1]))


@pytest.mark.parametrize("form", [row for row in ROWS if not row.at_start], ids=lambda row: row.name)
def test_a_call_behind_text(form: ToolFormat) -> None:
    text = f"Let me see: 1 < 2.\n{form.write(CALLS[:1])}"
    assert accepts(constraint(None, tool_use(BODIES, "auto", None), formats=AnswerFormats(form)), text)
    assert not accepts(constraint(None, tool_use(BODIES, "required", None), formats=AnswerFormats(form)), text)
    assert read(form, [text]) == read(form, list(text)) == ("Let me see: 1 < 2.", "", called(CALLS[:1]))


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
def test_no_other_function_and_no_wrong_argument_is_allowed(form: ToolFormat) -> None:
    spec = constraint(None, tool_use(BODIES, "required", None), formats=AnswerFormats(form))
    for wrong in (Call("other", {}), Call("get_weather", {"days": 2}), Call("get_weather", {"city": "a", "days": "x"})):
        assert not accepts(spec, form.write([wrong])), wrong


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
def test_one_call_where_no_more_are_allowed(form: ToolFormat) -> None:
    spec = constraint(None, tool_use(BODIES, "required", False), formats=AnswerFormats(form))
    assert accepts(spec, form.write(CALLS[:1]))
    assert not accepts(spec, form.write(CALLS[:2]))


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
def test_arguments_of_any_name(form: ToolFormat) -> None:
    call = Call("find", {"query": "all of it", "more": "x"}, "aBcDeFgH1")
    text = form.write([call])
    assert accepts(constraint(None, tool_use(BODIES, "required", None), formats=AnswerFormats(form)), text)
    assert read(form, [text])[2] == called([call])


@pytest.mark.parametrize("thinking", [Thinking.POSSIBLE, Thinking.OPENED])
@pytest.mark.parametrize(
    ("name", "reasoning"),
    [
        *(
            (form, row)
            for form in ("hermes", "llama3-json", "mistral", "qwen3-coder")
            for row in REASONING
            if not row.turn
        ),
        *((row.name, row) for row in REASONING if row.turn),
    ],
    ids=lambda one: getattr(one, "name", one),
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_reasoning_before_a_call(
    name: str, reasoning: ReasoningFormat, thinking: Thinking, choice: Literal["auto", "required"]
) -> None:
    form = next(row for row in ROWS if row.name == name)
    formats = AnswerFormats(form, reasoning)
    opening = "" if thinking is Thinking.OPENED else f"{reasoning.start}\n"
    thought = f"I could write {form.mark} here."
    text = f"{opening}{thought}{reasoning.end}{reasoning.turn}{form.write(CALLS[:1])}"
    assert accepts(constraint(None, tool_use(BODIES, choice, None), thinking, formats), text)
    expected = ("", thought, called(CALLS[:1]))
    assert read(form, [text], thinking, reasoning) == read(form, list(text), thinking, reasoning) == expected


@pytest.mark.parametrize("form", ROWS, ids=lambda row: row.name)
@given(data=st.data())
def test_any_split_gives_the_same_answer(form: ToolFormat, data: st.DataObject) -> None:
    written = form.write(CALLS if form.parallel else CALLS[:1])
    fragments = [form.mark, form.begin, form.end, form.tail, form.between, written, written[:40], "x", "\n", "{", '"']
    text = "".join(data.draw(st.lists(st.sampled_from([one for one in fragments if one]), max_size=6)))
    cuts = sorted(data.draw(st.lists(st.integers(0, max(len(text), 1)), max_size=10)))
    parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
    parsers = [AnswerParser(AnswerFormats(form), functions=FUNCTIONS) for _ in range(2)]
    whole = parsers[0].push(text) + parsers[0].finish()
    split = [piece for part in parts for piece in parsers[1].push(part)] + parsers[1].finish()

    def joined(pieces: Sequence[Any], kind: str, call: int) -> str:
        return "".join(piece.text for piece in pieces if piece.kind == kind and piece.call == call)

    for kind in ("content", "call", "arguments"):
        for call in range(parsers[0].num_calls + 1):
            assert joined(whole, kind, call) == joined(split, kind, call)
