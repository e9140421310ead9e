"""The language of an answer: the form that is asked for, tool calls and reasoning; strict schemas are checked."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import JSON_STYLE, GrammarSpec
from prolepsis.engine.grammar.source import lark_terminal
from prolepsis.engine.models.answer_formats.call_grammar import call_rules
from prolepsis.engine.models.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.models.answer_formats.reasoning import THINK, ReasoningFormat
from prolepsis.engine.models.answer_formats.tool_format import Function, ToolFormat, lark_quoted
from prolepsis.server.openai.bodies import (
    AllowedChoice,
    FunctionBody,
    GenerationBody,
    NamedTool,
    ResponseFormat,
    SharedBody,
    StructuredOutputs,
    ToolBody,
    ToolChoice,
)
from prolepsis.server.openai.conversation import read_json

_MAX_DEPTH = 64
_LISTS = ("anyOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions")
_SINGLE = ("items",)
_REFUSED = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties")


def check_strict(schema: dict[str, object], param: str) -> None:
    """Raise `InvalidParameter` naming the first place where `schema` leaves the strict subset.

    The root is an object; every object lists all its properties in `required` and has `additionalProperties: false`.
    """
    if schema.get("type") != "object":
        raise InvalidParameter(f"{param}: the root of a strict schema must have type 'object'", param=param)
    for path, part in _parts(schema, param, 0):
        _check_part(path, part, param)


def _parts(schema: dict[str, object], path: str, depth: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield every schema inside `schema`, itself first, with where it is."""
    if depth > _MAX_DEPTH:
        raise InvalidParameter(f"{path} is nested deeper than {_MAX_DEPTH} levels, the most allowed", param=path[:200])
    yield path, schema
    for name in (*_LISTS, *_MAPS, *_SINGLE):
        inner = schema.get(name)
        parts: list[tuple[str, object]] = []
        if name in _LISTS and isinstance(inner, list):
            parts = [(f"{path}.{name}[{i}]", part) for i, part in enumerate(inner)]
        elif name in _MAPS and isinstance(inner, dict):
            parts = [(f"{path}.{name}.{key[:64]}", part) for key, part in inner.items()]
        elif name in _SINGLE:
            parts = [(f"{path}.{name}", inner)]
        for where, part in parts:
            if isinstance(part, dict):
                yield from _parts(part, where, depth + 1)


def _check_part(path: str, schema: dict[str, object], param: str) -> None:
    refused = next((name for name in _REFUSED if name in schema), None)
    if refused is not None:
        raise InvalidParameter(f"{path}: strict schemas do not take {refused!r}; allowed: anyOf", param=param)
    kinds = schema.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in schema
    if not is_object:
        return
    if schema.get("additionalProperties") is not False:
        raise InvalidParameter(f"{path}: strict objects must have 'additionalProperties': false", param=param)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InvalidParameter(f"{path}: 'properties' must be an object and 'required' a list", param=param)
    listed = {name for name in required if isinstance(name, str)}
    missing = next((name for name in properties if name not in listed), None)
    if missing is not None:
        message = f"{path}: strict objects must list every property in 'required'; {missing[:64]!r} is missing"
        raise InvalidParameter(message, param=param)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """Tools that the prompt describes, tools that the model may call, and how."""

    shown: tuple[FunctionBody, ...]
    callable: tuple[FunctionBody, ...]
    """Empty: none may be called."""
    required: bool
    parallel: bool
    """Several calls in one answer are allowed."""

    @property
    def functions(self) -> tuple[Function, ...]:
        """Those that may be called, as forms of calls take them."""
        return tuple(Function(one.name, one.parameters, strict=bool(one.strict)) for one in self.callable)


NO_TOOLS = ToolUse((), (), required=False, parallel=False)


def tool_use(tools: Sequence[ToolBody] | None, choice: ToolChoice | None, parallel: bool | None) -> ToolUse:
    """Read tools and tool choice together; raises `InvalidParameter`."""
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
    return ToolUse(functions, named, required=required, parallel=parallel is not False and kind != "function")


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


_ANY_OBJECT: Mapping[str, object] = {"type": "object"}
_TEXT = r"TEXT: /(.|\n)*/"
_SPACE = r"SPACE: /[ \n]*/"


def asked_form(body: SharedBody) -> GrammarSpec | None:
    """Return the grammar that the body asks for by name, or None; raises `InvalidParameter`."""
    wanted = body.response_format if isinstance(body, GenerationBody) else None
    by_format = _of_response_format(wanted) if wanted else None
    if body.structured_outputs is None:
        return by_format
    if by_format is not None:
        message = "structured_outputs and response_format are given; allowed: one of them"
        raise InvalidParameter(message, param="structured_outputs")
    return _of_structured_outputs(body.structured_outputs)


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
        rules.append(f"form: {_as_rule(form)}")
        answer = f"(calls | {lark_quoted(reasoning.content)} form)"
    return GrammarSpec("lark", _lark(answer, [*rules, _SPACE], thinking, reasoning))


def _of_response_format(wanted: ResponseFormat) -> GrammarSpec | None:
    if wanted.type == "json_object":
        return _json(_ANY_OBJECT if wanted.schema_ is None else wanted.schema_)
    if wanted.json_schema is None:
        return None
    param = "response_format.json_schema.schema"
    schema = wanted.json_schema.schema_
    if wanted.json_schema.strict:
        check_strict(schema or {}, param)
    return _json(_ANY_OBJECT if schema is None else schema)


def _of_structured_outputs(wanted: StructuredOutputs) -> GrammarSpec:
    if wanted.regex is not None:
        return GrammarSpec("regex", wanted.regex)
    if wanted.choice is not None:
        return GrammarSpec("choice", json.dumps(wanted.choice, ensure_ascii=False))
    if wanted.grammar is not None:
        return GrammarSpec("lark", wanted.grammar)
    if wanted.json_object:
        return _json(_ANY_OBJECT)
    return _json(_read_schema(wanted.json_))


def _read_schema(value: object) -> Mapping[str, object]:
    if isinstance(value, str):
        try:
            value = read_json(value, "structured_outputs.json")
        except ValueError as error:
            message = f"structured_outputs.json is not JSON: {error}"
            raise InvalidParameter(message, param="structured_outputs.json") from None
    if not isinstance(value, dict):
        raise InvalidParameter("structured_outputs.json must be a JSON schema", param="structured_outputs.json")
    return value


def _json(schema: Mapping[str, object]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False))


def _free_text_and_calls(
    form: ToolFormat, calls: list[str], thinking: Thinking, reasoning: ReasoningFormat, parallel: bool
) -> str:
    """Any text; from an opening mark on, a call. What a model reasons is such text, and its marks open none."""
    mark, several = form.mark, parallel and form.parallel
    if form.at_start:
        rest, rules = "SPACE calls | NO_CALL", [_SPACE, f"NO_CALL: {_any_but(begins=(mark,))}"]
    elif several:
        rest, rules = "(open opened)* TEXT", [f"open[lazy]: TEXT {lark_quoted(mark)}", _TEXT]
    else:
        plain = f"PLAIN: {_any_but(holds=(mark,))}"
        rest, rules = "PLAIN | open opened PLAIN", [f"open[lazy]: TEXT {lark_quoted(mark)}", _TEXT, plain]
    if thinking is Thinking.NONE:
        return _grammar(rest, [*calls, *rules])
    start, end = reasoning.start, reasoning.end
    rules += [f"rest: {rest}", *([] if _TEXT in rules else [_TEXT])]
    if thinking is Thinking.OPENED:
        think = [f"think[lazy]: TEXT {lark_quoted(end)}", f"UNENDED: {_any_but(holds=(end,))}"]
        return _grammar("think rest | UNENDED", [*calls, *rules, *think])
    rules += [
        f"think[lazy]: /[ \\n]*/ {lark_quoted(start)} TEXT {lark_quoted(end)}",
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
    return _grammar(f"think rest | UNENDED | {first}", [*calls, *rules])


def _any_but(*, holds: Sequence[str] = (), begins: Sequence[str] = (), opens: str = "") -> str:
    """Return a terminal of text that holds none of some texts and, behind white space, begins with none of others.

    It begins with `opens`, behind white space.
    """
    first = rf"/[ \n]*{_pattern(opens)}(.|\n)*/" if opens else r"/(.|\n)*/"
    refused = [rf"~/(.|\n)*{_pattern(text)}(.|\n)*/" for text in holds]
    refused += [rf"~/[ \n]*{_pattern(text)}(.|\n)*/" for text in begins]
    return " & ".join((first, *refused))


def _pattern(text: str) -> str:
    """Return a regex of lark for a fixed text."""
    return re.sub(r"[\\.+*?()|\[\]{}^$/]", r"\\\g<0>", text).replace("\n", "\\n")


def _behind_thinking(form: GrammarSpec, thinking: Thinking, reasoning: ReasoningFormat) -> GrammarSpec:
    rules = [f"form: {_as_rule(form)}", _SPACE, _TEXT]
    return GrammarSpec("lark", _lark(f"{lark_quoted(reasoning.content)} form", rules, thinking, reasoning))


def _as_rule(form: GrammarSpec) -> str:
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
        rules = [*rules, f"think[lazy]: {lark_quoted(reasoning.start)} TEXT {lark_quoted(reasoning.end)}"]
    elif thinking is Thinking.OPENED:
        start = f"think SPACE {turn} {answer}"
        rules = [*rules, f"think[lazy]: TEXT {lark_quoted(reasoning.end)}"]
    if thinking is not Thinking.NONE and _TEXT not in rules:
        rules = [*rules, _TEXT]
    return _grammar(start, rules)


def _grammar(start: str, rules: Sequence[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"
