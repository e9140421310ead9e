"""Any split of an answer's text gives the pieces of the whole."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.call_reader import Piece
from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS, THINK, AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.schemas import Function
from prolepsis.engine.text.answer_formats.table import TOOL_FORMATS
from prolepsis.engine.text.answer_formats.tool_format import Call
from tests.engine.text.answer_formats.reading import read_all

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": [1, "}</tool_call>\\""], "b": {}}}\n</tool_call>'
FORMATS = AnswerFormats(reasoning=THINK)
FUNCTIONS = (Function("add"), Function("f"))
ARGUMENTS = '{"a": [1, "}</tool_call>\\""], "b": {}}'


def parse(
    parts: Sequence[str], thinking: Thinking = Thinking.NONE, *, tools: bool = True, required: bool = False
) -> dict[str, object]:
    """Return content, reasoning and calls of an answer that comes in `parts`."""
    return read(AnswerParser(FORMATS, thinking, FUNCTIONS if tools else (), required=required), parts)


def read(parser: AnswerParser, parts: Sequence[str]) -> dict[str, object]:
    found = read_all(parser, parts)
    return {**found._asdict(), "calls": [list(call) for call in found.calls]}


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        ("plain < text", "plain < text", []),
        (CALL, "", [["add", ARGUMENTS]]),
        (f"Let me see.\n\n{CALL}\n{CALL} done", "Let me see.done", [["add", ARGUMENTS], ["add", ARGUMENTS]]),
        ('<tool_call>{"arguments": {"x": 1}, "name": "f"}</tool_call>', "", [["f", '{"x": 1}']]),
        ('<tool_call>{"name": "f", "parameters": {}}</tool_call>', "", [["f", "{}"]]),
        ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [["f", '{"x": 1}']]),
        ('<tool_call>{"name": "f"}', "", [["f", "{}"]]),
        ('<tool_call>{"name": "f", "arguments": {"x": ', "", [["f", '{"x": ']]),
        ('<tool_call>{"name": "f", "arguments": {"x": 1</tool_call>ok', "ok", [["f", '{"x": 1']]),
        ("a <tool_call> no </tool_call> b", "a <tool_call> no </tool_call> b", []),
        ("a <tool_call>{", "a <tool_call>{", []),
        ("a <tool_cal", "a <tool_cal", []),
        ("  spaces \n", "  spaces \n", []),
    ],
)
def test_tool_calls(text: str, content: str, calls: list[list[str]]) -> None:
    expected = {"content": content, "reasoning": "", "calls": calls}
    assert parse([text]) == parse(list(text)) == expected
    if calls and text.endswith("</tool_call>"):
        json.loads(calls[-1][1])


@pytest.mark.parametrize(
    ("thinking", "text", "content", "reasoning"),
    [
        (Thinking.POSSIBLE, "<think>\nhm, 2\n</think>\n\n4", "4", "hm, 2"),
        (Thinking.POSSIBLE, "  4 </think>", "  4 </think>", ""),
        (Thinking.POSSIBLE, "<thin", "<thin", ""),
        (Thinking.POSSIBLE, "so <think>no</think>", "so <think>no</think>", ""),
        (Thinking.OPENED, "hm</think>4", "4", "hm"),
        (Thinking.OPENED, "hm </thi", "", "hm </thi"),
        (Thinking.NONE, "<think>hm</think>4", "<think>hm</think>4", ""),
    ],
)
def test_reasoning(thinking: Thinking, text: str, content: str, reasoning: str) -> None:
    expected = {"content": content, "reasoning": reasoning, "calls": []}
    assert parse([text], thinking, tools=False) == parse(list(text), thinking, tools=False) == expected


def test_reasoning_then_a_call() -> None:
    parts = ["<think>I", " add</thi", "nk>\n<tool_", CALL[6:]]
    assert parse(parts, Thinking.POSSIBLE) == {"content": "", "reasoning": "I add", "calls": [["add", ARGUMENTS]]}


def test_arguments_come_as_they_are_written() -> None:
    parser = AnswerParser(FORMATS, Thinking.NONE, FUNCTIONS)
    assert parser.push('<tool_call>{"name": "f", "arguments": {"pla') == [
        Piece("call", "f"),
        Piece("arguments", '{"pla'),
    ]
    assert parser.push('ce": "here') == [Piece("arguments", 'ce": "here')]
    assert parser.push('"}}') == [Piece("arguments", '"}')]


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": {', '"name"', '"x": "<', "\\",
     '"', "{", "}", "}}", "\n", " ", "<", "text", CALL, "[", "é", '{"name": "a</tool_call>b", "arguments": {}}']
)  # fmt: skip


@given(
    text=st.lists(FRAGMENTS, max_size=14).map("".join),
    cuts=st.lists(st.integers(0, 200), max_size=12),
    thinking=st.sampled_from(Thinking),
    tools=st.booleans(),
)
def test_any_split_gives_the_same_answer(text: str, cuts: list[int], thinking: Thinking, tools: bool) -> None:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    parts = [text[a:b] for a, b in pairwise(bounds)]
    assert parse(parts, thinking, tools=tools) == parse([text], thinking, tools=tools)


FENCED = '```json\n{"name": "f", "arguments": {}}\n```'


@pytest.mark.parametrize(
    ("form", "reasoning", "text"),
    [
        ("hermes", "think", f"Hi {FENCED} there"),
        ("hermes", "think", f" \n{FENCED}\n<tool_call>no call"),
        ("command-r", "think", f"Hi {TOOL_FORMATS['command-r'].write([Call('f', {})])}```py\nx\n```"),
        ("command-r", "think", "Hi Action:\n```jsonf("),
        ("pythonic", "mistral", " [THINK]So.[/THINK][f()]"),
        ("granite", "think", "<|tool_call|>[no call] "),
    ],
)
@pytest.mark.parametrize("required", [False, True])
def test_marks_that_hold_or_begin_others_are_read_alike_in_any_split(
    form: str, reasoning: str, text: str, required: bool
) -> None:
    formats = AnswerFormats(TOOL_FORMATS[form], REASONING_FORMATS[reasoning])

    def found(parts: Sequence[str]) -> dict[str, object]:
        return read(
            AnswerParser(formats, Thinking.POSSIBLE, FUNCTIONS, required=required, fits=lambda call: True), parts
        )

    whole = found([text])
    assert found(list(text)) == whole
    assert all(found([text[:i], text[i:]]) == whole for i in range(len(text)))


@given(text=st.lists(FRAGMENTS, max_size=14).map("".join))
def test_text_without_calls_is_not_lost(text: str) -> None:
    result = parse([text])
    if not result["calls"]:
        kept = "".join(str(result["content"]).split())
        assert kept == "".join(text.split())


@pytest.mark.parametrize("thinking", list(Thinking))
@pytest.mark.parametrize("before", ["", CALL, f"{CALL} "])
@pytest.mark.parametrize("length", range(len('<tool_call>\n{"name": "add", "arguments": {"a"')))
def test_a_required_call_cut_at_any_length_shows_no_markup(length: int, before: str, thinking: Thinking) -> None:
    thought = {Thinking.NONE: "", Thinking.POSSIBLE: "<think>hm</think>", Thinking.OPENED: "hm</think>"}[thinking]
    text = thought + before + '<tool_call>\n{"name": "add", "arguments": {"a"'[:length]
    answer = parse([text], thinking, required=True)
    assert answer["content"] == ""
    assert answer == parse(list(text), thinking, required=True)
    assert len(answer["calls"]) in (bool(before), bool(before) + 1)  # type: ignore[arg-type]
