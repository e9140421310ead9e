"""From what a request asks of the answer's form (formats, tools, reasoning) to one grammar."""

import json
from collections.abc import Mapping

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.grammar import JSON_STYLE, GrammarSpec
from prolepsis.server.bodies import GenerationBody, SharedBody
from prolepsis.server.format_bodies import ResponseFormat, StructuredOutputs
from prolepsis.server.json_text import read_json
from prolepsis.server.reasoning import THINK, THINK_END, Thinking
from prolepsis.server.strict_schema import check_strict
from prolepsis.server.tool_bodies import FunctionBody
from prolepsis.server.tool_marks import CALL, CALL_END
from prolepsis.server.tool_use import NO_TOOLS, ToolUse

_ANY_OBJECT: Mapping[str, object] = {"type": "object"}
_TEXT = r"TEXT: /(.|\n)*/"
_PLAIN = rf"PLAIN: /(.|\n)*/ & ~/(.|\n)*{CALL}(.|\n)*/"
"""Text that opens no call."""
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
    form: GrammarSpec | None, tools: ToolUse = NO_TOOLS, thinking: Thinking = Thinking.NONE
) -> GrammarSpec | None:
    """Join the asked form, tool calls and reasoning into one grammar; None leaves the answer free."""
    if not tools.callable:
        return form if form is None or thinking is Thinking.NONE else _behind_thinking(form, thinking)
    if form is not None and form.kind == "lark":
        message = "structured_outputs.grammar and tools are given; allowed: one of them"
        raise InvalidParameter(message, param="structured_outputs.grammar")
    if form is None and not tools.required:
        return GrammarSpec("lark", _free_text_and_calls(tools))
    answer = "calls" if tools.required or form is None else "(calls | form)"
    rules = [*_calls(tools), "calls: call" + (" (SPACE call)*" if tools.parallel else "")]
    if form is not None and not tools.required:
        rules.append(f"form: {_as_rule(form)}")
    return GrammarSpec("lark", _lark(answer, [*rules, _SPACE], thinking))


def _of_response_format(wanted: ResponseFormat) -> GrammarSpec | None:
    if wanted.type == "json_object":
        return _json(_ANY_OBJECT)
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
            message = f"structured_outputs.json is no JSON: {error}"
            raise InvalidParameter(message, param="structured_outputs.json") from None
    if not isinstance(value, dict):
        raise InvalidParameter("structured_outputs.json must be a JSON schema", param="structured_outputs.json")
    return value


def _json(schema: Mapping[str, object]) -> GrammarSpec:
    return GrammarSpec("json_schema", json.dumps(schema, ensure_ascii=False))


def _free_text_and_calls(tools: ToolUse) -> str:
    """Any text; from an opening mark on, a call. What a model thinks is such text."""
    rules = [*_calls(tools), f"open[lazy]: TEXT {_quoted(CALL)}", _TEXT]
    if tools.parallel:
        return _lark("(open call_body)* TEXT", rules, Thinking.NONE)
    return _lark("PLAIN | open call_body PLAIN", [*rules, _PLAIN], Thinking.NONE)


def _calls(tools: ToolUse) -> list[str]:
    names = [f"tool_{i}" for i in range(len(tools.callable))]
    rules = [
        f"{name}: {_quoted(_head(function))} %json {_arguments(function)}"
        for name, function in zip(names, tools.callable, strict=True)
    ]
    body = f"call_body: ({' | '.join(names)}) {_quoted('}' + chr(10) + CALL_END)}"
    return [*rules, body, f"call: {_quoted(CALL)} call_body"]


def _head(function: FunctionBody) -> str:
    return f'\n{{"name": "{function.name}", "arguments": '


def _arguments(function: FunctionBody) -> str:
    """The schema of a call's arguments; keywords that cannot be enforced are ignored unless the tool is strict."""
    schema = function.parameters
    if not schema:
        schema = {"type": "object", "properties": {}, "additionalProperties": False}
    if "type" not in schema and "$ref" not in schema:
        schema = {"type": "object", **schema}
    return json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": not function.strict}})


def _behind_thinking(form: GrammarSpec, thinking: Thinking) -> GrammarSpec:
    if form.kind == "lark":
        return form
    return GrammarSpec("lark", _lark("form", [f"form: {_as_rule(form)}", _SPACE, _TEXT], thinking))


def _as_rule(form: GrammarSpec) -> str:
    if form.kind == "json_schema":
        return f"%json {json.dumps({**json.loads(form.source), 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"
    if form.kind == "choice":
        return " | ".join(_quoted(choice) for choice in json.loads(form.source))
    return "/" + form.source.replace("\\/", "/").replace("/", "\\/") + "/"


def _lark(answer: str, rules: list[str], thinking: Thinking) -> str:
    start = answer
    if thinking is Thinking.POSSIBLE:
        start = f"(think SPACE)? {answer}"
        rules = [*rules, f"think[lazy]: {_quoted(THINK)} TEXT {_quoted(THINK_END)}"]
    elif thinking is Thinking.OPENED:
        start = f"think SPACE {answer}"
        rules = [*rules, f"think[lazy]: TEXT {_quoted(THINK_END)}"]
    if thinking is not Thinking.NONE and _TEXT not in rules:
        rules = [*rules, _TEXT]
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
