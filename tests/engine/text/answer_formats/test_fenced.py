"""A whole answer that is written as fenced JSON is calls; any other text is content, complete, and soon let go."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.call_reader import JsonCall
from prolepsis.engine.text.answer_formats.fenced import skeletons
from prolepsis.engine.text.answer_formats.formats import THINK, AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.schemas import Function
from prolepsis.engine.text.answer_formats.table import HERMES, TOOL_FORMATS
from tests.engine.text.answer_formats.reading import Read, read_all

CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
FUNCTIONS = (Function("get_weather", CITY), Function("get"))
ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
OSLO = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Oslo ``` {x}"\n  }\n}'
IN_ROME, IN_OSLO = ("get_weather", '{"city": "Rome"}'), ("get_weather", '{"city": "Oslo ``` {x}"}')


def fits(call: JsonCall) -> bool:
    return "misfit" not in call.arguments


def parser_of(*, parallel: bool = True, form: str = HERMES.name, thinking: Thinking = Thinking.NONE) -> AnswerParser:
    formats = AnswerFormats(TOOL_FORMATS[form], THINK)
    return AnswerParser(formats, thinking, FUNCTIONS, parallel=parallel, fits=fits)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (f"```json\n{ROME}\n```", [IN_ROME]),
        (f"```json {ROME} ```", [IN_ROME]),
        (f"\n```\n{OSLO}\n```\n \n", [IN_OSLO]),
        (f" {ROME}\n", [IN_ROME]),
        (f"{{{ROME}}}", [IN_ROME]),
        ('{"arguments": {}, "name": "get"}', [("get", "{}")]),
        ('{"name": "get", "parameters": "{}"}', [("get", "{}")]),
        ('{"name": "get", "arguments": {"a": "\\ud83d\\ude00"}}', [("get", '{"a": "😀"}')]),
        ('{"name": "get", "arguments": {"a": 1.5e-3}}', [("get", '{"a": 0.0015}')]),
        (f"```json\n{ROME}\n```\n\n```json\n{OSLO}\n```", [IN_ROME, IN_OSLO]),
        (f"```json\n{ROME}\n{OSLO}\n```", [IN_ROME, IN_OSLO]),
        (f"{ROME}\n{OSLO}", [IN_ROME, IN_OSLO]),
    ],
)
def test_an_answer_that_is_nothing_but_calls_is_calls(text: str, calls: Sequence[tuple[str, str]]) -> None:
    for parts in ([text], list(text)):
        assert read_all(parser_of(), parts) == Read("", "", list(calls))
    parser = parser_of()
    assert [piece for part in text for piece in parser.push(part)] == [], "nothing goes out before it is certain"


OTHERS = [
    "",
    " ",
    "```",
    "```json",
    f"```python\n{ROME}\n```",
    f"```jsonl\n{ROME}\n```",
    f"Here it is:\n```json\n{ROME}\n```",
    f"```json\n{ROME}\n```\nThis calls it.",
    f"```json\n{ROME}",
    f"{ROME}\n```",
    f"```json\n{ROME[:-1]}",
    f"```json\n[{ROME}]\n```",
    f"```json\n{ROME}\n```\n```json\n{{}}\n```",
    '{"name": "other", "arguments": {}}',
    '{"name": "get_", "arguments": {}}',
    '{"name": "get"}',
    '{"name": "get", "arguments": {}, "parameters": {}}',
    '{"name": "get", "arguments": {}, "why": "so"}',
    '{"name": "get", "arguments": {"misfit": 1}}',
    '{"name": ["get"], "arguments": {}}',
    '{"name": "get", "arguments": {a: 1}}',
    '{"name": "get", "arguments": {"a": NaN}}',
    '{"name": "get", "arguments": {"a": "\\ud83d"}}',
    '{"name": "get", "arguments": {"a": "b" c',
    '{"name": "get", "arguments": {"a": 1. ',
    '{"name": "get", "arguments": {"a": "\n"}}',
    '{"name": "get", "arguments": ' + '{"a":' * 3000,
    f"{{{ROME}",
    f"{{ {ROME} }}",
    '{"name": "Rome", "population": 2800000}',
    "{}",
    "{",
]


@pytest.mark.parametrize("text", OTHERS)
def test_any_other_text_is_content_unchanged(text: str) -> None:
    for parts in ([text], list(text)):
        assert read_all(parser_of(), parts) == Read(text, "", [])


@pytest.mark.parametrize("text", [one for one in OTHERS if len(one) < 500])
@pytest.mark.parametrize("rest", ["", " and so on" * 20])
def test_splits_do_not_matter_and_text_is_let_go(text: str, rest: str) -> None:
    parser = parser_of()
    shown = [piece for part in text + rest for piece in parser.push(part)]
    assert "".join(piece.text for piece in [*shown, *parser.finish()]) == text + rest
    if rest:
        held = len(text + rest) - sum(len(piece.text) for piece in shown)
        assert held <= 1, "the space at the end may belong to a mark"


@given(
    parts=st.lists(
        st.sampled_from(["```", "json", "\n", " ", "{", "}", ROME, OSLO, '"name"', "x", "<tool_call>", "<think>", "`"]),
        max_size=8,
    ),
    thinking=st.sampled_from(Thinking),
)
def test_any_split_gives_the_same_answer(parts: list[str], thinking: Thinking) -> None:
    text = "".join(parts)
    assert read_all(parser_of(thinking=thinking), list(text)) == read_all(parser_of(thinking=thinking), [text])


def test_reasoning_may_come_before() -> None:
    text = f"<think>So.</think>\n\n```json\n{ROME}\n```"
    assert read_all(parser_of(thinking=Thinking.POSSIBLE), list(text)) == Read("", "So.", [IN_ROME])


def test_several_calls_where_one_is_allowed_are_content() -> None:
    text = f"{ROME}\n{OSLO}"
    assert read_all(parser_of(parallel=False), [text]) == Read(text, "", [])
    assert read_all(parser_of(parallel=False), [ROME]) == Read("", "", [IN_ROME])


def test_families_that_write_no_fences_are_read_as_ever() -> None:
    text = f"```json\n{ROME}\n```"
    assert read_all(parser_of(form="granite"), list(text)) == Read(text, "", [])


def test_a_skeleton_is_a_call_without_its_values() -> None:
    text = skeletons(FUNCTIONS)
    first, second = read_all(parser_of(), [text]).calls
    assert (first[0], json.loads(first[1])) == ("get_weather", {"city": "", "days": ""})
    assert second == ("get", "{}")
    assert text.startswith('```json\n{\n  "name": "get_weather",\n  "arguments": {\n    "city": ""')
