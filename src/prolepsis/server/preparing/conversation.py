"""A conversation as the model's prompt: messages, tools and reasoning in the form that its chat template takes.

All that the client gave is marked as given, so that none of it becomes a control token of the model.

Lines of system texts that differ between requests of one agent would end the prefix that the cache has. A line of
attribution says nothing to a model: it is left out. Other lines are what the client wants the model to read: they are
moved to the end of the conversation, and only those that the operator names (the setting `lenient`).
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prolepsis.core.config import MovedLine
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import given, joined, plain
from prolepsis.core.marks import RESULT, RESULT_END
from prolepsis.engine.text.answer_formats.formats import AnswerFormats, Thinking
from prolepsis.engine.text.answer_formats.json_arguments import JsonArguments
from prolepsis.engine.text.answer_formats.table import HERMES
from prolepsis.engine.text.answer_formats.tool_format import Call, ToolFormat
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.preparing.asked import ToolUse
from prolepsis.server.preparing.bodies import (
    ROLES,
    ChatBody,
    FunctionBody,
    Message,
    TemplateBody,
    ToolCallBody,
    read_json,
)

_SYSTEM = ("system", "developer")
_ATTRIBUTION = re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE)
"""Claude Code's, in its system text, for its maker's accounts."""
_BEFORE = r"^[^\w\n]*(?:<\w{1,32}>[ \t]*)?"
"""What a line may begin with: a bullet, a mark."""
_LINES: Mapping[MovedLine, re.Pattern[str]] = {
    "date": re.compile(
        _BEFORE + r"(?:today(?:'s date)?|(?:the )?current[ _](?:date|time)(?: and time)?)\b"
        r"[^\n]{0,64}?(?:\b\d{4}\b|\d:\d\d)[^\n]*\n?",
        re.MULTILINE | re.IGNORECASE,
    ),
    "tokens_left": re.compile(
        _BEFORE + r"(?:token usage|(?:tokens?|context)(?: window)? (?:left|remaining))\b[^\n]*?\d[^\n]*\n?",
        re.MULTILINE | re.IGNORECASE,
    ),
}
_TAIL = 8
"""Tokens at the prompt's end that can hold an opening mark."""
TemplateMessage = dict[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What the chat template is given."""

    messages: list[TemplateMessage]
    tools: list[TemplateMessage] | None  # none: the template shows none
    variables: dict[str, object]
    add_generation_prompt: bool
    begun: str | None  # text of the last message, inside of which the prompt ends; None: it ends behind it


def conversation(
    messages: Sequence[Message], tools: Sequence[FunctionBody], body: TemplateBody, tokenizer: Tokenizer
) -> Conversation:
    """Return what the template shows of messages and tools; raises `InvalidParameter` for what it cannot show."""
    formats, goes_on = tokenizer.formats, bool(body.continue_final_message)
    for role in sorted({message.role for message in messages}.difference(ROLES)):
        if not tokenizer.shows_role(role):
            number = next(i for i, message in enumerate(messages) if message.role == role)
            message = f"role {role!r} is not one that the model's chat template shows; allowed: {', '.join(ROLES)}"
            raise InvalidParameter(message, param=f"messages[{number}].role")
    if goes_on and (messages[-1].tool_calls or messages[-1].role == "tool"):
        message = "continue_final_message is true, and the last message is a call or its result; allowed: a text"
        raise InvalidParameter(message, param="continue_final_message")
    shown, described = _messages(messages, formats), None
    if tools and formats.shows_tools:
        described = [_tool(tool) for tool in tools]
    elif tools:
        text = explanation(tools, formats.tools or HERMES)
        if shown[0]["role"] == "system":
            text = joined((shown.pop(0)["content"], text), "\n\n")
        shown.insert(0, {"role": "system", "content": text})
    values = [shown, described, given(body.template_variables)]
    shown, described, variables = plain(values) if body.parse_special else values
    return Conversation(
        messages=shown,
        tools=described,
        variables=variables,
        add_generation_prompt=body.add_generation_prompt is not False,
        begun=(messages[-1].content or "") if goes_on else None,
    )


@dataclass(frozen=True, slots=True)
class ModelPrompt:
    token_ids: tuple[int, ...]
    thinking: Thinking = Thinking.NONE  # what to expect of the answer

    @staticmethod
    def of(conversation: Conversation, tokenizer: Tokenizer) -> "ModelPrompt":
        """Return the prompt of a conversation; raises `InvalidParameter` where the template refuses it."""
        token_ids = tokenizer.apply_chat_template(
            conversation.messages,
            add_generation_prompt=conversation.add_generation_prompt,
            continue_final_message=conversation.begun is not None,
            tools=conversation.tools,
            variables=conversation.variables,
        )
        reasoning, begun, thinking = tokenizer.formats.reasoning, conversation.begun or "", Thinking.NONE
        if reasoning is not None and begun.strip():
            is_open = begun.rfind(reasoning.start) > begun.rfind(reasoning.end)
            thinking = Thinking.OPENED if is_open else Thinking.NONE
        elif reasoning is not None:
            tail = tokenizer.decode(token_ids[-_TAIL:], skip_special_tokens=False).rstrip()
            if tail.endswith(reasoning.start):
                thinking = Thinking.OPENED
            elif not tail.endswith(reasoning.end) or reasoning.turn:
                thinking = Thinking.POSSIBLE
        return ModelPrompt(tuple(token_ids), thinking)


def chat_conversation(
    body: ChatBody, tools: Sequence[FunctionBody], tokenizer: Tokenizer, moves: Sequence[MovedLine] = ()
) -> tuple[Conversation, Sequence[MovedLine]]:
    """Return the conversation of a chat, with some lines moved to its end, and which of them there were."""
    messages, lines = moved(body.messages, moves)
    return conversation(without_attribution(messages), tools, body, tokenizer), lines


def chat_tokens(body: ChatBody, tools: ToolUse, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the prompt of a chat; raises `InvalidParameter` where the template refuses it."""
    return ModelPrompt.of(chat_conversation(body, tools.shown, tokenizer)[0], tokenizer).token_ids


def _messages(messages: Sequence[Message], formats: AnswerFormats) -> list[TemplateMessage]:
    """Return messages as the template takes them: calls and results of which it knows nothing become text."""
    ids, shown = _Ids(formats.tools), list[TemplateMessage]()
    for number, message in enumerate(messages):
        if message.role != "tool" or formats.shows_results:
            shown.append(_message(message, f"messages[{number}]", formats, ids))
            continue
        content = joined((RESULT, given(message.content), RESULT_END), "\n")
        if number > 0 and messages[number - 1].role == "tool":
            content = joined((shown.pop()["content"], content), "\n")
        shown.append({"role": "user", "content": content})
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
    calls, content = message.tool_calls or (), given(message.content or "")
    if calls and not formats.shows_calls:
        form = formats.tools or HERMES
        parts = [(call.function.name, _written(call, form, field), ids.of_call(call)) for call in calls]
        written = form.written([(given(name), given(arguments), given(name_id)) for name, arguments, name_id in parts])
        content = joined((content, written), "\n") if content else written
    shown: TemplateMessage = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if calls and formats.shows_calls:
        shown["tool_calls"] = [
            {
                "id": given(ids.of_call(call)),
                "type": "function",
                "function": given(
                    {"name": call.function.name, "arguments": _arguments(call, f"{field}.tool_calls[{i}]")}
                ),
            }
            for i, call in enumerate(calls)
        ]
    if message.tool_call_id is not None:
        shown["tool_call_id"] = given(ids.of_result(message.tool_call_id))
    for name in ("name", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            shown[name] = given(value)
    return shown


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


def without_attribution(messages: Sequence[Message]) -> list[Message]:
    """Return messages without lines of attribution in system texts."""
    return [one for message in messages if (one := _without(_ATTRIBUTION, message)) is not None] or list(messages)


def moved(messages: Sequence[Message], names: Sequence[MovedLine]) -> tuple[list[Message], list[MovedLine]]:
    """Return messages with these lines of the first system texts behind the last message, and which there were."""
    kept, lines, found = list(messages), list[str](), list[MovedLine]()
    first_turn = next((i for i, message in enumerate(messages) if message.role not in _SYSTEM), 0)
    if not first_turn or messages[-1].role not in ("user", "tool"):  # the answer goes on behind what it has begun with
        return kept, found
    for name in names:
        for i, message in enumerate(kept[:first_turn]):
            if here := [line[0].strip() for line in _LINES[name].finditer(message.content or "")]:
                lines, found = lines + here, [*found, name]
                kept[i] = message.model_copy(update={"content": _LINES[name].sub("", message.content or "")})
    if lines:
        reminder = "<system-reminder>\n" + "\n".join(lines) + "\n</system-reminder>"
        kept[-1] = kept[-1].model_copy(update={"content": f"{kept[-1].content or ''}\n\n{reminder}"})
    return [message for message in kept if message.role not in _SYSTEM or message.content], list(dict.fromkeys(found))


def _without(lines: re.Pattern[str], message: Message) -> Message | None:
    """Return a message without these lines, None where it had nothing else; other roles stay as they are."""
    if message.role not in _SYSTEM or not message.content or not lines.search(message.content):
        return message
    content = lines.sub("", message.content)
    return message.model_copy(update={"content": content}) if content else None
