"""The language of an answer: the form that is asked for, tool calls and reasoning."""

import re
from collections.abc import Sequence

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import GrammarSpec
from prolepsis.engine.text.answer_formats.formats import THINK, AnswerFormats, ReasoningFormat, Thinking
from prolepsis.engine.text.answer_formats.tool_format import ToolFormat, call_rules, lark_quoted
from prolepsis.server.preparing.asked import NO_TOOLS, ToolUse
from prolepsis.server.preparing.lark import TEXT, as_grammar, as_rule

_GAP = r"[ \n]{0,4}"
"""White space around marks, bounded: models that want another form than the asked one would write it for ever."""
_SPACE = f"SPACE: /{_GAP}/"
_THOUGHT = r"THOUGHT: /([ \t\r\n]{0,32}[^ \t\r\n])*[ \t\r\n]{0,32}/"
"""Reasoning before a form, whose white space is bounded too."""


def constraint(
    form: GrammarSpec | None,
    tools: ToolUse = NO_TOOLS,
    thinking: Thinking = Thinking.NONE,
    formats: AnswerFormats = AnswerFormats(),  # noqa: B008  # it is frozen
) -> GrammarSpec | None:
    """Join the asked form, tool calls and reasoning into one grammar; None leaves the answer free.

    Raises `InvalidParameter` for tools that the model's form of calls cannot carry.
    """
    reasoning = formats.reasoning or THINK
    if not tools.callable:
        return form if form is None or thinking is Thinking.NONE else _behind_thinking(form, thinking, reasoning)
    if formats.tools is None:
        message = (
            "the model's chat template writes tool calls in a form that is not known, or that its tokens cannot spell"
        )
        raise InvalidParameter(f"{message}; allowed: tool_choice 'none', or the setting tool_format", param="tools")
    if form is not None and form.kind == "lark":
        message = "structured_outputs.grammar and tools are given; allowed: one of them"
        raise InvalidParameter(message, param="structured_outputs.grammar")
    rules = call_rules(formats.tools, tools.functions, parallel=tools.parallel)
    if form is None and not tools.required:
        return GrammarSpec("lark", _free_text_and_calls(formats.tools, rules, thinking, reasoning, tools.parallel))
    answer = "calls"
    if form is not None and not tools.required:
        rules.append(f"form: {as_rule(form)}")
        answer = f"(calls | {lark_quoted(reasoning.content)} form)"
    return GrammarSpec("lark", _lark(answer, [*rules, _SPACE], thinking, reasoning))


def _free_text_and_calls(
    form: ToolFormat, calls: list[str], thinking: Thinking, reasoning: ReasoningFormat, parallel: bool
) -> str:
    """Any text; from an opening mark on, a call. What a model reasons is such text, and its marks open none."""
    mark, several = form.mark, parallel and form.parallel
    if form.at_start:
        rest, rules = "SPACE calls | NO_CALL", [_SPACE, f"NO_CALL: {_any_but(begins=(mark,))}"]
    elif several:
        rest, rules = "(open opened)* TEXT", [f"open[lazy]: TEXT {lark_quoted(mark)}", TEXT]
    else:
        plain = f"PLAIN: {_any_but(holds=(mark,))}"
        rest, rules = "PLAIN | open opened PLAIN", [f"open[lazy]: TEXT {lark_quoted(mark)}", TEXT, plain]
    if thinking is Thinking.NONE:
        return as_grammar(rest, [*calls, *rules])
    start, end = reasoning.start, reasoning.end
    rules += [f"rest: {rest}", *([] if TEXT in rules else [TEXT])]
    if thinking is Thinking.OPENED:
        think = [f"think[lazy]: TEXT {lark_quoted(end)}", f"UNENDED: {_any_but(holds=(end,))}"]
        return as_grammar("think rest | UNENDED", [*calls, *rules, *think])
    rules += [
        f"think[lazy]: /{_GAP}/ {lark_quoted(start)} TEXT {lark_quoted(end)}",
        f"UNENDED: {_any_but(holds=(end,), opens=start)}",
        f"FREE: {_any_but(begins=(start,))}",
    ]
    if form.at_start:
        first = "SPACE calls | OTHER"
        rules.append(f"OTHER: {_any_but(begins=(start, mark))}")
    else:
        follows = "rest" if several else "PLAIN"
        first = f"first opened {follows} | OTHER"
        rules += [f"first[lazy]: FREE {lark_quoted(mark)}", f"OTHER: {_any_but(begins=(start,), holds=(mark,))}"]
    return as_grammar(f"think rest | UNENDED | {first}", [*calls, *rules])


def _any_but(*, holds: Sequence[str] = (), begins: Sequence[str] = (), opens: str = "") -> str:
    """Return a terminal of text that holds none of some texts and, behind white space, begins with none of others.

    It begins with `opens`, behind white space.
    """
    first = rf"/{_GAP}{_pattern(opens)}(.|\n)*/" if opens else r"/(.|\n)*/"
    refused = [rf"~/(.|\n)*{_pattern(text)}(.|\n)*/" for text in holds]
    refused += [rf"~/[ \n]*{_pattern(text)}(.|\n)*/" for text in begins]
    return " & ".join((first, *refused))


def _pattern(text: str) -> str:
    """Return a regex of lark for a fixed text."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text).replace("\n", "\\n")


def _behind_thinking(form: GrammarSpec, thinking: Thinking, reasoning: ReasoningFormat) -> GrammarSpec:
    rules = [f"form: {as_rule(form)}", _SPACE]
    return GrammarSpec("lark", _lark(f"{lark_quoted(reasoning.content)} form", rules, thinking, reasoning))


def _lark(answer: str, rules: list[str], thinking: Thinking, reasoning: ReasoningFormat) -> str:
    """Return the grammar of an answer that may come behind reasoning."""
    start, turn = answer, lark_quoted(reasoning.turn)
    if thinking is Thinking.POSSIBLE:
        start = f"(think SPACE {turn})? {answer}"
        rules = [*rules, f"think[lazy]: {lark_quoted(reasoning.start)} THOUGHT {lark_quoted(reasoning.end)}", _THOUGHT]
    elif thinking is Thinking.OPENED:
        start = f"think SPACE {turn} {answer}"
        rules = [*rules, f"think[lazy]: THOUGHT {lark_quoted(reasoning.end)}", _THOUGHT]
    return as_grammar(start, rules)
