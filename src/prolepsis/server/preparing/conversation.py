"""A conversation as the model's prompt: messages, tools and reasoning in the form that its chat template takes.

All that the client gave is marked as given, so that none of it becomes a control token of the model.
"""

import json
from collections.abc import Mapping, Sequence

from jiter import from_json

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given, joined, plain
from prolepsis.core.marks import RESULT, RESULT_END
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.json_arguments import JsonArguments
from prolepsis.engine.text.answer_formats.table import HERMES
from prolepsis.engine.text.answer_formats.tool_format import Call, ToolFormat
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.preparing.bodies import ROLES, FunctionBody, Message, ToolCallBody

MAX_DEPTH = 200
"""The parser's own limit; it holds for the body itself too."""


def read_json(text: str, param: str) -> object:
    """Return the value of `text`; raises `ValueError`, and `InvalidParameter` where it is nested too deeply."""
    try:
        value: object = from_json(text.encode())
    except ValueError as error:
        if "recursion limit" in str(error):
            message = f"{param} is nested too deeply; allowed: {MAX_DEPTH} levels"
            raise InvalidParameter(message, param=param) from None
        raise
    return value


_TAIL = 8
"""Tokens at the prompt's end that can hold an opening mark."""


def thinking_of(prompt: list[int], tokenizer: Tokenizer, begun: str = "") -> Thinking:
    """Return what to expect of the answer to `prompt`, which continues `begun`."""
    reasoning = tokenizer.formats.reasoning
    if reasoning is None:
        return Thinking.NONE
    if begun.strip():
        return Thinking.OPENED if begun.rfind(reasoning.start) > begun.rfind(reasoning.end) else Thinking.NONE
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    if tail.endswith(reasoning.start):
        return Thinking.OPENED
    return Thinking.NONE if tail.endswith(reasoning.end) and not reasoning.turn else Thinking.POSSIBLE


TemplateMessage = dict[str, object]


def prompt_tokens(
    messages: Sequence[Message],
    tools: Sequence[FunctionBody],
    tokenizer: Tokenizer,
    variables: Mapping[str, object] | None = None,
    *,
    add_generation_prompt: bool = True,
    continue_final_message: bool = False,
    parse_special: bool = False,
) -> list[int]:
    """Return the prompt of a conversation; raises `InvalidParameter` where the template refuses it.

    `continue_final_message`: it ends inside of the last message. `parse_special`: what reads like a control token
    becomes one, also where the client gave it.
    """
    formats = tokenizer.formats
    _check_roles(messages, tokenizer)
    if continue_final_message and (messages[-1].tool_calls or messages[-1].role == "tool"):
        message = "continue_final_message is true, and the last message is a call or its result; allowed: a text"
        raise InvalidParameter(message, param="continue_final_message")
    shown = _messages(messages, formats)
    if tools and not formats.shows_tools:
        shown = _with_explanation(shown, tools, formats.tools or HERMES)
    described = [_tool(tool) for tool in tools] if tools and formats.shows_tools else None
    values = [shown, described, given(variables)]
    shown, described, variables = plain(values) if parse_special else values
    return tokenizer.apply_chat_template(
        shown,
        add_generation_prompt=add_generation_prompt,
        continue_final_message=continue_final_message,
        tools=described,
        variables=variables,
    )


def _check_roles(messages: Sequence[Message], tokenizer: Tokenizer) -> None:
    for role in sorted({message.role for message in messages}.difference(ROLES)):
        if not tokenizer.shows_role(role):
            number = next(i for i, message in enumerate(messages) if message.role == role)
            message = f"role {role!r} is not one that the model's chat template shows; allowed: {', '.join(ROLES)}"
            raise InvalidParameter(message, param=f"messages[{number}].role")


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _messages(messages: Sequence[Message], formats: AnswerFormats) -> list[TemplateMessage]:
    """Return messages as the template takes them: calls and results of which it knows nothing become text."""
    ids, shown = _Ids(formats.tools), list[TemplateMessage]()
    for number, message in enumerate(messages):
        if message.role == "tool" and not formats.shows_results:
            follows = number > 0 and messages[number - 1].role == "tool"
            content = joined((shown.pop()["content"], _result(message)), "\n") if follows else _result(message)
            shown.append({"role": "user", "content": content})
        else:
            shown.append(_message(message, f"messages[{number}]", formats, ids))
    return shown


class _Ids:
    """The ids of a conversation's calls, in the form that the template takes."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._of: dict[str, str] = {}

    def of_call(self, call: ToolCallBody) -> str:
        name, number = call.function.name, len(self._of)
        self._of[call.id] = self._form.history_id(call.id, name, number) if self._form is not None else call.id
        return self._of[call.id]

    def of_result(self, call_id: str) -> str:
        return self._of.get(call_id, call_id)


def _message(message: Message, field: str, formats: AnswerFormats, ids: _Ids) -> TemplateMessage:
    calls = message.tool_calls or ()
    content = given(message.content or "")
    if calls and not formats.shows_calls:
        form = formats.tools or HERMES
        written = form.written(
            [
                (given(call.function.name), given(_written(call, form, field)), given(ids.of_call(call)))
                for call in calls
            ]
        )
        content = joined((content, written), "\n") if content else written
    shown: TemplateMessage = {"role": _role(message), "content": content}
    if calls and formats.shows_calls:
        shown["tool_calls"] = [_call(call, f"{field}.tool_calls[{i}]", ids) for i, call in enumerate(calls)]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = given(ids.of_result(message.tool_call_id))
    for name in ("name", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            shown[name] = given(value)
    return shown


def _call(call: ToolCallBody, field: str, ids: _Ids) -> TemplateMessage:
    function = given({"name": call.function.name, "arguments": _arguments(call, field)})
    return {"id": given(ids.of_call(call)), "type": "function", "function": function}


def _arguments(call: ToolCallBody, field: str) -> object:
    """Return the arguments as an object; if they are not JSON, as in a call that was cut short, return the text."""
    try:
        return read_json(_arguments_text(call), f"{field}.function.arguments")
    except ValueError:
        return call.function.arguments


def _written(call: ToolCallBody, form: ToolFormat, field: str) -> str:
    """Return the arguments in the model's form; those that are no object, as in a call that was cut, as they are."""
    value = _arguments(call, field)
    if isinstance(form.arguments, JsonArguments) or not isinstance(value, dict):
        return _arguments_text(call)
    return form.arguments.write(value)


def _arguments_text(call: ToolCallBody) -> str:
    """Return the arguments as JSON; clients that give none mean no arguments."""
    text = call.function.arguments
    return "{}" if text.strip() in ("", "null") else text


def _with_explanation(
    messages: list[TemplateMessage], tools: Sequence[FunctionBody], form: ToolFormat
) -> list[TemplateMessage]:
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": explanation(tools, form)}, *messages]
    content = joined((messages[0]["content"], explanation(tools, form)), "\n\n")
    return [{"role": "system", "content": content}, *messages[1:]]


def _result(message: Message) -> str:
    return joined((RESULT, given(message.content), RESULT_END), "\n")


def _tool(function: FunctionBody) -> TemplateMessage:
    shown: TemplateMessage = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": given(shown)}


def explanation(tools: Sequence[FunctionBody], form: ToolFormat = HERMES) -> str:
    """Return the system text for models whose template says nothing of tools."""
    example = form.write([Call("function name", {"argument": "value"})])
    listed = joined([given(json.dumps(_tool(tool), ensure_ascii=False)) for tool in tools], "\n")
    parts = (
        "You can call functions. Each line describes one, with a JSON schema of its arguments:\n",
        listed,
        f"\nTo call a function, write its name and arguments in this form:\n{example}\n"
        f"What it returns is given to you between {RESULT} and {RESULT_END}.",
    )
    return joined(parts)
