"""The language of an answer: the form that is asked for, tool calls and reasoning."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import JSON_STYLE, GrammarSpec
from prolepsis.engine.text.answer_formats.formats import THINK, AnswerFormats, ReasoningFormat, Thinking
from prolepsis.engine.text.answer_formats.tool_format import Function, ToolFormat, call_rules, lark_quoted
from prolepsis.engine.text.grammar.references import rooted
from prolepsis.engine.text.grammar.relaxed import AT_THE_END, Relaxed, held_form
from prolepsis.engine.text.grammar.relaxed import named as warned
from prolepsis.engine.text.grammar.source import lark_terminal
from prolepsis.server.preparing.bodies import (
    AllowedChoice,
    FunctionBody,
    NamedTool,
    ToolBody,
    ToolChoice,
)
from prolepsis.server.preparing.strict_schema import check_strict


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the prompt describes, tools that the model may call, and how."""

    shown: tuple[FunctionBody, ...]
    callable: tuple[FunctionBody, ...]
    """Empty: none may be called."""
    required: bool
    parallel: bool
    """Several calls in one answer are allowed."""
    warnings: tuple[str, ...] = ()
    """What is not kept of the schemas."""
    checked: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By name the schemas of which a whole call's arguments have to hold more than a grammar does."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that may be called, as forms of calls take them."""
        return tuple(Function(one.name, one.parameters, strict=bool(one.strict)) for one in self.callable)


NO_TOOLS = ToolUse((), (), required=False, parallel=False)


def tool_use(
    tools: Sequence[ToolBody] | None, choice: ToolChoice | None, parallel: bool | None, *, open_objects: bool = False
) -> ToolUse:
    """Read tools and tool choice together; raises `InvalidParameter`.

    `open_objects`: an object may have other properties where its schema does not say.
    """
    functions = tuple(tool.function for tool in tools or ())
    kind = choice if isinstance(choice, str) else choice.type if choice else "auto"
    if not functions:
        if kind not in ("auto", "none"):
            raise InvalidParameter(f"tool_choice is {kind!r}, but tools is empty; allowed: none", param="tool_choice")
        return NO_TOOLS
    _check(functions)
    if kind == "none":
        return ToolUse(functions, (), required=False, parallel=False)
    named = _named(choice, functions)
    mode = choice.allowed_tools.mode if isinstance(choice, AllowedChoice) else kind
    required = mode in ("required", "function")
    held = [(one, held_form(one.parameters or {}, open_objects=open_objects)) for one in named]
    return ToolUse(
        functions,
        tuple(one.model_copy(update={"parameters": one.parameters and form.schema}) for one, form in held),
        required=required,
        parallel=parallel is not False and kind != "function",
        warnings=_warnings(held),
        checked={one.name: rooted(one.parameters or {}) for one, form in held if one.strict and form.checked},
    )


def _warnings(held: Sequence[tuple[FunctionBody, Relaxed]]) -> tuple[str, ...]:
    """Return what is not held of schemas; raises `InvalidParameter` where that of a strict one is not even checked."""
    lost, at_the_end = list[str](), list[str]()
    for one, form in held:
        if one.strict and form.unknown:
            message = f"the strict parameters of {one.name!r} have {form.unknown[0][:200]}"
            raise InvalidParameter(f"{message}; allowed: what can be held or checked", param="tools")
        places = form.annotations if one.strict else (*form.annotations, *form.checked, *form.unknown)
        lost += [f"{one.name}: {place}" for place in places]
        at_the_end += [f"{one.name}: {place}" for place in form.checked if one.strict]
    return (*warned("without effect", lost), *warned(AT_THE_END, at_the_end))


def _check(functions: Sequence[FunctionBody]) -> None:
    names = [function.name for function in functions]
    double = next((name for name in names if names.count(name) > 1), None)
    if double is not None:
        raise InvalidParameter(f"tools names {double!r} twice; allowed: different names", param="tools")
    for i, function in enumerate(functions):
        if function.strict:
            check_strict(function.parameters or {}, f"tools[{i}].function.parameters")


def _named(choice: ToolChoice | None, functions: tuple[FunctionBody, ...]) -> tuple[FunctionBody, ...]:
    if choice is None or isinstance(choice, str):
        return functions
    chosen = [choice] if isinstance(choice, NamedTool) else choice.allowed_tools.tools
    names = [tool.function.name for tool in chosen]
    known = {function.name: function for function in functions}
    unknown = next((name for name in names if name not in known), None)
    if unknown is not None:
        message = f"tool_choice names {unknown!r}; allowed: the names in tools ({', '.join(known)})"
        raise InvalidParameter(message[:600], param="tool_choice")
    return tuple(known[name] for name in dict.fromkeys(names))


TEXT = r"TEXT: /(.|\n)*/"
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


def as_rule(form: GrammarSpec) -> str:
    if form.kind == "json_schema":
        return f"%json {json.dumps({**json.loads(form.source), 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"
    if form.kind == "choice":
        return " | ".join(lark_quoted(choice) for choice in json.loads(form.source))
    return f"%lark {{\n{form.source}\n}}" if form.kind == "lark" else lark_terminal(form.source)


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


def as_grammar(start: str, rules: Sequence[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"
