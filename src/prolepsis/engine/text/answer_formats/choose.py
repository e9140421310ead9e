"""Which forms a model's chat template writes: it is given calls, and the rows that write the same are looked for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from prolepsis.core.errors import ConfigError, InvalidParameter
from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.call_reader import is_json_object
from prolepsis.engine.text.answer_formats.formats import REASONING_FORMATS, THINK, AnswerFormats, ReasoningFormat
from prolepsis.engine.text.answer_formats.formats import ROWS as REASONING_ROWS
from prolepsis.engine.text.answer_formats.schemas import Function
from prolepsis.engine.text.answer_formats.table import HERMES, ROWS, TOOL_FORMATS
from prolepsis.engine.text.answer_formats.tool_format import Call, ToolFormat

AUTO = "auto"
Message = Mapping[str, object]


class Template(Protocol):
    """What renders conversations."""

    source: str

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> str: ...


def answer_formats(template: Template | None, *, tools: str = AUTO, reasoning: str = AUTO) -> AnswerFormats:
    """Return the forms of a model with this template; names other than `auto` override what it shows.

    Raises `ConfigError` for a name that is not known.
    """
    formats = _found(template) if template is not None else AnswerFormats()
    if tools != AUTO:
        if tools not in TOOL_FORMATS:
            message = f"tool_format is {tools[:64]!r}; allowed: {AUTO}, {', '.join(TOOL_FORMATS)}"
            raise ConfigError(message, param="tool_format")
        if formats.tools is None or formats.tools.name != tools:
            formats = replace(formats, tools=TOOL_FORMATS[tools], shows_calls=False)
    if reasoning == "none":
        return replace(formats, reasoning=None)
    if reasoning != AUTO:
        if reasoning not in REASONING_FORMATS:
            message = f"reasoning_format is {reasoning[:64]!r}; allowed: {AUTO}, none, {', '.join(REASONING_FORMATS)}"
            raise ConfigError(message, param="reasoning_format")
        return replace(formats, reasoning=REASONING_FORMATS[reasoning])
    return formats


_ARGUMENTS: Mapping[str, object] = {
    "zone": "Rome-7",
    "count": 2,
    "exact": True,
    "near": ["a", "b"],
    "area": {"wide": "w", "name": "x"},
}
_TEXT = {"type": "string"}
_KINDS: Mapping[str, Mapping[str, object]] = {
    "zone": _TEXT,
    "count": {"type": "integer"},
    "exact": {"type": "boolean"},
    "near": {"type": "array", "items": _TEXT},
    "area": {"type": "object", "additionalProperties": _TEXT},
}
_SCHEMA = {
    "type": "object",
    "properties": {name: {**kind, "description": "a value"} for name, kind in _KINDS.items()},
    "required": ["zone"],
}
_QUESTION = "Where-is-it?"
_CALLS = (Call("probe_one", _ARGUMENTS, "aBcDeFgH1"), Call("probe_two", {"zone": "Oslo-9"}, "iJkLmNoP2"))
_TOOLS = [
    {"type": "function", "function": {"name": call.name, "description": "Looks.", "parameters": _SCHEMA}}
    for call in _CALLS
]


def _found(template: Template) -> AnswerFormats:
    shown, written = _rendered(template, []), _written(template, 1)
    shows_tools = shown is not None and _CALLS[0].name in shown
    result = {"role": "tool", "tool_call_id": _CALLS[0].id, "name": _CALLS[0].name, "content": "Found-at-9"}
    shows_results = "Found-at-9" in (_rendered(template, [*_messages(1), result]) or "")
    base = AnswerFormats(HERMES, _reasoning(template, shown), shows_tools=shows_tools, shows_results=shows_results)
    answer = written.rpartition(_QUESTION)[2] if written is not None else ""
    row = next((row for row in ROWS if row.write(_CALLS[:1]) in answer), None)
    row = row or next((row for row in ROWS if not row.at_start and _reads(row, answer, 1)), None)
    if row is not None:
        return replace(base, tools=_with_several(row, template), shows_calls=True)
    if all(text in answer for text in (_CALLS[0].name, "Rome-7")):
        return replace(base, tools=None, shows_calls=True)
    return replace(base, tools=next((row for row in ROWS if any(tag in template.source for tag in row.hints)), HERMES))


def _reasoning(template: Template, prompt: str | None) -> ReasoningFormat | None:
    thought = {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}
    text = template.source + (prompt or "") + (_rendered(template, [thought]) or "")
    return next((row for row in REASONING_ROWS if row.end in text and (row is THINK or row.start in text)), None)


def _with_several(row: ToolFormat, template: Template) -> ToolFormat:
    """Return the form with what the template writes between two calls, or of one call where it takes only one."""
    written = (_written(template, 2) or "").rpartition(_QUESTION)[2]
    if not _reads(row, written, 2):
        return replace(row, parallel=False)
    if row.is_group:
        return row
    before = written.partition(row.write(_CALLS[1:]))[0]
    start = before.rfind(row.tail) + len(row.tail) if row.tail else len(before)
    return replace(row, between=before[start:])


def _reads(row: ToolFormat, answer: str, number: int) -> bool:
    """Say whether the form reads the first `number` calls in an answer that holds them."""
    if row.mark not in answer:
        return False
    parser = AnswerParser(AnswerFormats(row), functions=[Function(call.name, _SCHEMA) for call in _CALLS])
    pieces = [*parser.push(answer[answer.index(row.mark) :]), *parser.finish()]
    names = [piece.text for piece in pieces if piece.kind == "call"]
    args = ["".join(part.text for part in pieces if part.kind == "arguments" and part.call == i) for i in range(number)]
    return names == [call.name for call in _CALLS[:number]] and all(
        is_json_object(text) and json.loads(text) == call.arguments for text, call in zip(args, _CALLS, strict=False)
    )


def _written(template: Template, number: int) -> str | None:
    """Return a conversation in which the model makes `number` calls, as the template writes it; None: it refuses."""
    return _rendered(template, _messages(number), add_generation_prompt=False)


def _messages(number: int) -> list[Message]:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": dict(call.arguments)}}
        for call in _CALLS[:number]
    ]
    return [{"role": "assistant", "content": "", "tool_calls": calls}]


def _rendered(template: Template, more: Sequence[Message], *, add_generation_prompt: bool = True) -> str | None:
    messages = [{"role": "user", "content": _QUESTION}, *more]
    try:
        return template.render(messages, add_generation_prompt=add_generation_prompt, tools=_TOOLS)
    except InvalidParameter:
        return None
