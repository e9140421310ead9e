"""The grammars that requests turn into, run through the library that enforces them."""

import json

import llguidance
import pytest
from pydantic import TypeAdapter

from prolepsis.core.errors import InvalidGrammar
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.formats import Thinking
from prolepsis.engine.text.grammar.grammars import Grammars
from prolepsis.engine.text.grammar.source import llguidance_source
from prolepsis.server.preparing.asked import NO_TOOLS, ToolUse, tool_use
from prolepsis.server.preparing.bodies import ToolBody, ToolChoice
from prolepsis.server.preparing.constraint import constraint
from tests.engine.models.files.byte_level import byte_level

BYTES = llguidance.LLTokenizer("byte")
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [
    ToolBody.model_validate({"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}),
    ToolBody.model_validate({"type": "function", "function": {"name": "now"}}),
]
WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
FORM = GrammarSpec("json_schema", json.dumps(SCHEMA))


def accepts(spec: GrammarSpec | None, text: str) -> bool:
    assert spec is not None
    if spec.kind == "lark":
        source = spec.source
    elif spec.kind == "json_schema":
        source = f"start: %json {spec.source}"
    else:
        source = f"start: /{spec.source}/"
    matcher = llguidance.LLMatcher(BYTES, source)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(list(text.encode())) and matcher.is_accepting()


def use(choice: object = "auto", parallel: bool | None = None) -> ToolUse:
    return tool_use(TOOLS, TypeAdapter[ToolChoice](ToolChoice).validate_python(choice), parallel)


NAMED = {"type": "function", "function": {"name": "now"}}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "weather"}}]},
}


@pytest.mark.parametrize(
    ("tools", "fits", "refused"),
    [
        (use(), ["Hello", "", WEATHER, f"So: {NOW}\n{WEATHER} bye", "a < b"], ["<tool_call>x", WEATHER[:-20]]),
        (
            use(parallel=False),
            ["Hello", "", NOW, f"So {NOW}", f"So: {NOW}\n<tool_cal", f"a < b{WEATHER} bye\n</tool_call>"],
            [f"{WEATHER}"[:-3], "<tool_call>x", f"{NOW}\n{WEATHER}", f'So {NOW} or <tool_call>{{"name": "rm"}}'],
        ),
        (use("required"), [WEATHER, NOW, f"{NOW}\n{WEATHER}"], ["Hello", "", f"Hello {NOW}"]),
        (use("required", parallel=False), [WEATHER, NOW], [f"{NOW}\n{WEATHER}"]),
        (use(NAMED), [NOW], [WEATHER, f"{NOW}\n{NOW}", "Hello"]),
        (use(ALLOWED), [WEATHER, f"{WEATHER}\n{WEATHER}"], [NOW]),
    ],
)
def test_tools(tools: ToolUse, fits: list[str], refused: list[str]) -> None:
    spec = constraint(None, tools)
    for text in fits:
        assert accepts(spec, text), text
    for text in refused:
        assert not accepts(spec, text), text


@pytest.mark.parametrize("thinking", list(Thinking))
@pytest.mark.parametrize("parallel", [True, False])
def test_an_answer_may_end_in_its_text_and_not_within_a_call(thinking: Thinking, parallel: bool) -> None:
    """The terms of a rule for parts of the answer (`inside`) are read from that."""
    before = "hm</think>So: " if thinking is Thinking.OPENED else "So: "
    spec = constraint(None, use(parallel=parallel), thinking)
    assert spec is not None
    matcher, text = llguidance.LLMatcher(BYTES, spec.source), f"{before}{WEATHER} bye"
    may_end = [matcher.is_accepting()]
    for byte in text.encode():
        assert matcher.consume_tokens([byte])
        may_end.append(matcher.is_accepting())
    call = range(text.index("<tool_call>") + len("<tool_call>"), text.index(" bye"))
    assert [place for place, may in enumerate(may_end) if not may] == list(call)


def test_tools_that_may_not_be_called_leave_the_answer_free() -> None:
    assert constraint(None, use("none")) is None
    assert use("none").shown
    assert constraint(FORM, use("none")) == FORM


def test_a_form_beside_tools() -> None:
    spec = constraint(FORM, use())
    assert accepts(spec, '{"city": "Ulm"}')
    assert accepts(spec, WEATHER)
    assert not accepts(spec, "Hello")
    assert not accepts(constraint(FORM, use("required")), '{"city": "Ulm"}')


@pytest.mark.parametrize(
    ("thinking", "fits", "refused"),
    [
        (Thinking.POSSIBLE, ['{"city": "Ulm"}', '<think>\nhm {</think>\n\n{"city": "Ulm"}'], ["hm", "<think>hm"]),
        (Thinking.OPENED, ['hm\n</think>{"city": "Ulm"}'], ['{"city": "Ulm"}']),
    ],
)
def test_thinking_comes_before_the_form(thinking: Thinking, fits: list[str], refused: list[str]) -> None:
    for form in (
        FORM,
        GrammarSpec("choice", '["{\\"city\\": \\"Ulm\\"}"]'),
        GrammarSpec("regex", r'\{"city": "[^/"]+"\}'),
        GrammarSpec("lark", '// a } in a comment\nstart: "{" city "}"\ncity: "\\"city\\": " /"[^}"]+"/'),
    ):
        spec = constraint(form, NO_TOOLS, thinking)
        for text in fits:
            assert accepts(spec, text), text
        for text in refused:
            assert not accepts(spec, text), text
    assert accepts(constraint(None, use("required"), Thinking.POSSIBLE), f"<think>x</think>{NOW}")


@pytest.mark.parametrize("thinking", list(Thinking))
@pytest.mark.parametrize(
    "pattern", ["a/b", r"a\/b", "a\nb", "//", r"a\\/b", r"[/]", "a\\\nb", "a*", "(?i)a b", "a#b|é"]
)
def test_a_regex_is_the_same_terminal_alone_and_with_tools(pattern: str, thinking: Thinking) -> None:
    form = GrammarSpec("regex", pattern)
    alone = json.loads(llguidance_source(form))["grammars"][0]["lark_grammar"].strip().removeprefix("start: ")
    for tools in (NO_TOOLS, use("auto")):
        beside = constraint(form, tools, thinking)
        assert beside is not None
        assert beside == form or f"\nform: {alone}\n" in beside.source
        assert not llguidance.LLMatcher(BYTES, llguidance_source(beside)).is_error()


def test_a_regex_that_is_too_long_alone_is_too_long_with_tools() -> None:
    with pytest.raises(InvalidGrammar, match="regex has 40000 bytes"):
        constraint(GrammarSpec("regex", "a" * 40_000), use("auto"))


ONE_TOKEN_MARKS = byte_level("")
GRAMMARS = Grammars(ONE_TOKEN_MARKS.to_json, ONE_TOKEN_MARKS.vocab_size, (ONE_TOKEN_MARKS.vocab["</s>"],))


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (constraint(None, use()), f"So: {NOW}\n{WEATHER} bye"),
        (constraint(None, use(parallel=False)), f"So: {WEATHER} bye"),
        (constraint(None, use("required")), f"{NOW}\n{WEATHER}"),
        (constraint(None, use(NAMED)), NOW),
        (constraint(None, use("required"), Thinking.OPENED), f"First the time.</think>\n{NOW}"),
        (constraint(None, use("required"), Thinking.POSSIBLE), f"<think>First the time.</think>\n{NOW}"),
        (constraint(FORM, use(), Thinking.OPENED), f"No <tool_call>.</think>\n{WEATHER}"),
        (constraint(FORM, thinking=Thinking.OPENED), 'I know.</think>\n{"city": "Ulm"}'),
        (constraint(FORM, thinking=Thinking.POSSIBLE), '<think>I know.</think>\n{"city": "<tool_call>"}'),
    ],
)
def test_marks_may_be_one_token_of_the_model(spec: GrammarSpec | None, text: str) -> None:
    assert spec is not None
    matcher = GRAMMARS.compile(spec).matcher()
    tokens = ONE_TOKEN_MARKS.encode(text)
    assert len(tokens) <= len(text) - len("<think>")
    for token in tokens:
        assert matcher.mask()[token], ONE_TOKEN_MARKS.decode([token])
        matcher.advance([token])
    assert matcher.is_accepting()


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_call_begins_with_the_models_own_mark(choice: object) -> None:
    spec = constraint(None, use(choice))
    assert spec is not None
    forced = GRAMMARS.compile(spec).matcher().forced()
    assert ONE_TOKEN_MARKS.decode(forced).startswith('<tool_call>\n{"name": "')
    assert forced[0] == ONE_TOKEN_MARKS.vocab["<tool_call>"]
