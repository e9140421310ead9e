"""A conversation as the model's prompt: messages, tools and reasoning in the form that its chat template takes.

All that the client gave is marked as given, so that none of it becomes a control token of the model.
"""

import json
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Literal

from pydantic_core import from_json

from prolepsis.api.openai.bodies import FunctionBody, Message, ToolCall
from prolepsis.api.tokenizer import Tokenizer
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given, joined, plain
from prolepsis.core.marks import CALL, CALL_END, RESULT, RESULT_END, THINK, THINK_END

MAX_DEPTH = 200
"""pydantic-core's own limit; it holds for the body itself too."""


def read_json(text: str, param: str) -> object:
    """Return the value of `text`; raises `ValueError`, and `InvalidParameter` where it is nested too deeply."""
    try:
        value: object = from_json(text)
    except ValueError as error:
        if "recursion limit" in str(error):
            message = f"{param} is nested too deeply; allowed: {MAX_DEPTH} levels"
            raise InvalidParameter(message, param=param) from None
        raise
    return value


_TAIL = 8
"""Tokens at the prompt's end that can hold an opening mark."""

ReasoningOption = Literal["auto", "on", "off"]


class Thinking(Enum):
    NONE = "none"
    """The text is shown as it is."""
    POSSIBLE = "possible"
    """The answer may open with `<think>`."""
    OPENED = "opened"
    """The prompt ends with `<think>`: the answer begins inside."""


def thinking_of(option: ReasoningOption, prompt: list[int], tokenizer: Tokenizer) -> Thinking:
    """Return what to expect of the answer to `prompt`; auto: where the chat template knows the marks."""
    knows = THINK_END in (tokenizer.chat_template or "")
    if option == "off" or (option == "auto" and not knows):
        return Thinking.NONE
    tail = tokenizer.decode(prompt[-_TAIL:], skip_special_tokens=False).rstrip()
    return Thinking.OPENED if tail.endswith(THINK) else Thinking.POSSIBLE


TemplateMessage = dict[str, object]


def prompt_tokens(
    messages: Sequence[Message],
    tools: Sequence[FunctionBody],
    tokenizer: Tokenizer,
    variables: Mapping[str, object] | None = None,
    *,
    add_generation_prompt: bool = True,
    parse_special: bool = False,
) -> list[int]:
    """Return the prompt of a conversation; raises `InvalidParameter` where the template refuses it.

    `parse_special`: what reads like a control token becomes one, also where the client gave it.
    """
    knows_tools = _knows_tools(tokenizer.chat_template or "")
    shown = [_native(message, i) for i, message in enumerate(messages)] if knows_tools else _plain(messages, tools)
    described = [_tool(tool) for tool in tools] if tools and knows_tools else None
    values = [shown, described, given(variables)]
    shown, described, variables = plain(values) if parse_special else values
    return tokenizer.apply_chat_template(
        shown, add_generation_prompt=add_generation_prompt, tools=described, variables=variables
    )


def _knows_tools(template: str) -> bool:
    return re.search(r"\btools\b", template) is not None


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


def _native(message: Message, number: int) -> TemplateMessage:
    """Return a message for templates that write tool calls and results themselves, with arguments as objects."""
    shown: TemplateMessage = {"role": _role(message), "content": given(message.content or "")}
    if message.tool_calls:
        shown["tool_calls"] = [
            _call(call, f"messages[{number}].tool_calls[{i}]") for i, call in enumerate(message.tool_calls)
        ]
    for name in ("tool_call_id", "name", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            shown[name] = given(value)
    return shown


def _call(call: ToolCall, field: str) -> TemplateMessage:
    function = given({"name": call.function.name, "arguments": _arguments(call, field)})
    return {"id": given(call.id), "type": "function", "function": function}


def _arguments(call: ToolCall, field: str) -> object:
    """Return the arguments as an object; if they are not JSON, as in a call that was cut short, return the text."""
    try:
        return read_json(_arguments_text(call), f"{field}.function.arguments")
    except ValueError:
        return call.function.arguments


def _arguments_text(call: ToolCall) -> str:
    """Return the arguments as JSON; clients that give none mean no arguments."""
    text = call.function.arguments
    return "{}" if text.strip() in ("", "null") else text


def _plain(messages: Sequence[Message], tools: Sequence[FunctionBody]) -> list[TemplateMessage]:
    """Return messages for templates that know only roles and text: calls and results become text."""
    shown: list[TemplateMessage] = []
    for i, message in enumerate(messages):
        follows_result = i > 0 and messages[i - 1].role == "tool"
        if message.role == "tool" and follows_result:
            shown[-1]["content"] = joined((shown[-1]["content"], _result(message)), "\n")
        elif message.role == "tool":
            shown.append({"role": "user", "content": _result(message)})
        else:
            calls = [_written(call) for call in message.tool_calls or ()]
            content = [given(message.content or "")] if message.content or not calls else []
            shown.append({"role": _role(message), "content": joined([*content, *calls], "\n")})
    return _with_explanation(shown, tools) if tools else shown


def _with_explanation(messages: list[TemplateMessage], tools: Sequence[FunctionBody]) -> list[TemplateMessage]:
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": explanation(tools)}, *messages]
    content = joined((messages[0]["content"], explanation(tools)), "\n\n")
    return [{"role": "system", "content": content}, *messages[1:]]


def _result(message: Message) -> str:
    return joined((RESULT, given(message.content), RESULT_END), "\n")


def _written(call: ToolCall) -> str:
    function = given({"name": call.function.name, "arguments": _arguments_text(call)})
    return joined((CALL, '\n{"name": "', function["name"], '", "arguments": ', function["arguments"], "}\n", CALL_END))


def _tool(function: FunctionBody) -> TemplateMessage:
    shown: TemplateMessage = {"name": function.name}
    if function.description is not None:
        shown["description"] = function.description
    shown["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": given(shown)}


def explanation(tools: Sequence[FunctionBody]) -> str:
    """Return the system text for models whose template says nothing of tools."""
    listed = joined([given(json.dumps(_tool(tool), ensure_ascii=False)) for tool in tools], "\n")
    parts = (
        "You can call functions. Each line describes one, with a JSON schema of its arguments:\n",
        listed,
        "\nTo call a function, write its name and arguments as JSON between these marks:\n"
        f'{CALL}\n{{"name": "function name", "arguments": {{"argument": "value"}}}}\n{CALL_END}\n'
        f"What it returns is given to you between {RESULT} and {RESULT_END}.",
    )
    return joined(parts)
