"""No grammar of ours lets a model write white space without end, where nothing but white space may stand."""

import json
from collections.abc import Iterator
from typing import Literal

import llguidance
import pytest

from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.formats import ROWS as REASONING
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.table import HERMES, ROWS
from prolepsis.engine.text.answer_formats.tool_format import Call
from prolepsis.engine.text.grammar.source import llguidance_source
from prolepsis.server.preparing.asked import NO_TOOLS, asked_form, tool_use
from prolepsis.server.preparing.bodies import CompletionBody, ToolBody
from prolepsis.server.preparing.constraint import constraint

BYTES = llguidance.LLTokenizer("byte")
MOST = 72
"""White space in a row that may stand between two parts: a line end and the indentation of a nested value."""
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "near": {"type": "array", "items": {"type": "object", "properties": {"at": {"type": "number"}}}},
    },
    "additionalProperties": False,
}
ARGUMENTS = {"city": "Ulm", "days": 2, "near": [{"at": 1.5}, {}]}
CALLS = (Call("look", ARGUMENTS, "aBcDeFgH1"), Call("look", {}, "iJkLmNoP2"))
TOOLS = [
    ToolBody.model_validate({"type": "function", "function": {"name": "look", "parameters": SCHEMA}}),
    ToolBody.model_validate({"type": "function", "function": {"name": "open", "parameters": {"type": "object"}}}),
]
JSON = GrammarSpec("json_schema", json.dumps(SCHEMA))
ASKED: tuple[tuple[GrammarSpec | None, Literal["auto", "required"] | None], ...] = (
    (None, "auto"),
    (None, "required"),
    (JSON, None),
    (JSON, "auto"),
    (GrammarSpec("lark", 'start: "Ulm"'), None),
)
"""Forms of an answer and choices of tools."""


def runs(spec: GrammarSpec, answer: str) -> list[str]:
    """Return the starts of `answer` behind which white space never ends; text that may hold letters is content."""
    walk = llguidance.LLMatcher(BYTES, llguidance_source(spec))
    assert not walk.is_error(), walk.get_error()
    found, data = list[str](), answer.encode()
    for i in range(len(data) + 1):
        for space in (b" ", b"\n"):
            if walk.validate_tokens(list(space * MOST)) == MOST:
                behind = walk.deep_copy()
                behind.consume_tokens(list(space * MOST))
                found += [] if behind.validate_tokens(list(b"q")) else [data[:i].decode(errors="replace")]
        if i == len(data) or not walk.validate_tokens([data[i]]):
            break
        walk.consume_tokens([data[i]])
    return found


def answers(formats: AnswerFormats, thinking: Thinking) -> Iterator[str]:
    reasoning = formats.reasoning
    assert reasoning is not None
    assert formats.tools is not None
    opened = {Thinking.NONE: "", Thinking.OPENED: "", Thinking.POSSIBLE: reasoning.start}[thinking]
    thought = "" if thinking is Thinking.NONE else f"{opened}Hm.{reasoning.end}\n\n{reasoning.turn}"
    for rest in (formats.tools.write(CALLS), reasoning.content + json.dumps(ARGUMENTS)):
        yield thought + rest


PAIRS = [
    *((row, REASONING[-1], Thinking.NONE) for row in ROWS),
    *((row, REASONING[-1], Thinking.POSSIBLE) for row in ROWS if row.at_start or row.is_group),
    *((HERMES, row, thinking) for row in REASONING for thinking in (Thinking.POSSIBLE, Thinking.OPENED)),
]


@pytest.mark.parametrize(
    ("formats", "thinking"),
    [(AnswerFormats(row, reasoning), thinking) for row, reasoning, thinking in PAIRS],
    ids=[f"{row.name}-{reasoning.name}-{thinking.value}" for row, reasoning, thinking in PAIRS],
)
def test_white_space_of_every_form_ends(formats: AnswerFormats, thinking: Thinking) -> None:
    for form, choice in ASKED:
        spec = constraint(form, tool_use(TOOLS, choice, None) if choice else NO_TOOLS, thinking, formats)
        for answer in answers(formats, thinking):
            assert spec is not None
            assert runs(spec, answer) == []


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ({"structured_outputs": {"json": SCHEMA}}, json.dumps(ARGUMENTS)),
        ({"structured_outputs": {"json_object": True}}, json.dumps(ARGUMENTS)),
        ({"structured_outputs": {"choice": ["a", "b"]}}, "a"),
        (
            {
                "structured_outputs": {
                    "structural_tag": {
                        "type": "structural_tag",
                        "structures": [{"begin": "<f=x>", "schema": SCHEMA, "end": "</f>"}],
                        "triggers": ["<f="],
                    }
                }
            },
            f"So <f=x>{json.dumps(ARGUMENTS)}</f>",
        ),
    ],
)
def test_white_space_of_every_asked_form_ends(asked: dict[str, object], answer: str) -> None:
    spec = asked_form(CompletionBody.model_validate({"model": "m", "prompt": "x", **asked})).grammar
    assert spec is not None
    assert runs(spec, answer) == []


@pytest.mark.parametrize(("thinking", "start"), [(Thinking.POSSIBLE, "<think>So"), (Thinking.OPENED, "So")])
def test_white_space_inside_of_reasoning_before_a_form_ends(thinking: Thinking, start: str) -> None:
    spec = constraint(JSON, NO_TOOLS, thinking, AnswerFormats(reasoning=REASONING[-1]))
    assert spec is not None
    walk = llguidance.LLMatcher(BYTES, llguidance_source(spec))
    walk.consume_tokens(list(start.encode()))
    assert walk.validate_tokens(list(b" \n" * MOST)) < MOST
    usual = list(b"\n\n        it is.\n" * 40)
    assert walk.validate_tokens(usual) == len(usual)


def test_runs_are_found() -> None:
    assert runs(GrammarSpec("lark", 'start: "a" /[ \\n]*/ "b"'), "a b") == ["a", "a", "a ", "a "]
    assert runs(GrammarSpec("lark", "start: /(.|\\n)*/"), "a b") == []
