"""What a chat template takes, found by rendering small conversations, and messages brought into that form.

Templates differ in more than their marks: some refuse a system message or leave it out, some join the arguments of a
call to a text, and some show calls only in messages without content.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, takewhile
from operator import itemgetter
from typing import Any, cast

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.given_text import joined, made_of
from prolepsis.engine.text.chat_template import ChatTemplate, Message

_ASKED, _SYSTEM, _OTHER = "asked-7f3", "system-7f3", "other-7f3"
_NAME, _KEY, _VALUE = "name_7f3", "key_7f3", "value-7f3"
_PARAMETERS = {"type": "object", "properties": {_KEY: {"type": "string", "description": "a text"}}}
_TOOL = {"type": "function", "function": {"name": _NAME, "description": "a function", "parameters": _PARAMETERS}}

_UNDESCRIBED = {"type": "function", "function": {"name": _NAME, "parameters": _PARAMETERS}}


@dataclass(frozen=True, slots=True)
class TemplateNeeds:
    """How a template differs from one that takes all that clients send."""

    no_system: bool = False  # it refuses system messages, or leaves them out
    one_system: bool = False  # it refuses a second system message, or leaves one out
    alternates: bool = False  # it refuses two messages of the user in a row, or leaves one out
    parts: bool = False  # it takes contents only as lists of parts
    text_arguments: bool = False  # it takes arguments of calls as JSON in a text, not as an object
    null_content: bool = False  # it shows calls only in messages whose content is null
    descriptions: bool = False  # it refuses functions without a description


class FittingTemplate:
    """A template that is given messages in the form that it takes."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self.source = template.source

    @cached_property
    def _needs(self) -> TemplateNeeds:
        return needs_of(self._template)

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the prompt text of `messages`; raises `InvalidParameter` if the template refuses them."""
        if tools and self._needs.descriptions:
            given = ((tool, cast(Mapping[str, object], tool["function"])) for tool in tools)
            tools = [{**tool, "function": {"name": func["name"], "description": "", **func}} for tool, func in given]
        return self._template.render(
            fitted(messages, self._needs), add_generation_prompt=add_generation_prompt, tools=tools, variables=variables
        )

    def shows_role(self, role: str) -> bool:
        messages = [{"role": "user", "content": _ASKED}, {"role": role, "content": _VALUE}]
        return _shows(self._template, fitted(messages, self._needs), _ASKED, _VALUE)


def needs_of(template: ChatTemplate) -> TemplateNeeds:
    """Return what `template` takes; what it can show in no form counts as no need."""
    plain: Message = {"role": "user", "content": _ASKED}
    parts = not _shows(template, [plain], _ASKED) and _shows(template, [_in_parts(plain)], _ASKED)
    system: Message = {"role": "system", "content": _SYSTEM}
    other: Message = {"role": "user", "content": _OTHER}
    user, system, other = (_in_parts(message) if parts else message for message in (plain, system, other))
    takes_user, takes_system = _shows(template, [user], _ASKED), _shows(template, [system, user], _SYSTEM, _ASKED)
    forms: list[tuple[bool, str | None]] = [(False, ""), (False, None), (True, ""), (True, None)]
    as_text, content = next((form for form in forms if _shows_call(template, user, form[1], as_text=form[0])), forms[0])
    return TemplateNeeds(
        no_system=takes_user and not takes_system,
        one_system=takes_system and not _shows(template, [system, {**other, "role": "system"}, user], _SYSTEM, _OTHER),
        alternates=takes_user and not _shows(template, [user, other], _ASKED, _OTHER),
        parts=parts,
        text_arguments=as_text,
        null_content=content is None,
        descriptions=bool(_rendered(template, [user])) and not _rendered(template, [user], _UNDESCRIBED),
    )


def fitted(messages: Sequence[Message], needs: TemplateNeeds) -> list[Message]:
    """Return messages in the form that a template with these needs takes.

    What stands in system messages then begins the user's message that follows, or ends the one before, or is one; where
    one of them may come first, it has what stands in those at the beginning.
    """
    turns = [each for entry in messages for each in (_with_calls(entry, needs) if entry.get("tool_calls") else [entry])]
    if needs.no_system:
        turns = _without_system(turns)
    elif needs.one_system:
        first = list(takewhile(lambda message: message["role"] == "system", turns))
        turns = [*_joined(first), *_without_system(turns[len(first) :])]
    if needs.alternates:
        groups = [(role, list(group)) for role, group in groupby(turns, key=itemgetter("role"))]
        turns = [message for role, group in groups for message in (_joined(group) if role == "user" else group)]
    return [_in_parts(message) for message in turns] if needs.parts else turns


def _rendered(template: ChatTemplate, messages: Sequence[Message], tool: Mapping[str, object] = _TOOL) -> str:
    try:
        return template.render(messages, tools=[tool])
    except InvalidParameter:
        return ""


def _shows(template: ChatTemplate, messages: Sequence[Message], *texts: str) -> bool:
    shown = _rendered(template, messages)
    return all(text in shown for text in texts)


def _shows_call(template: ChatTemplate, user: Message, content: str | None, *, as_text: bool) -> bool:
    """Say whether a call is shown with its arguments, neither in Python's spelling nor as a text in a text."""
    arguments = {_KEY: _VALUE}
    function = {"name": _NAME, "arguments": json.dumps(arguments) if as_text else arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    shown = _rendered(template, [user, {"role": "assistant", "content": content, "tool_calls": [call]}])
    shown = shown.partition(_ASKED)[2]  # what comes before explains the function
    return _VALUE in shown and _KEY in shown and not any(f"{quote}{_KEY}" in shown for quote in ("{'", '\\"'))


def _in_parts(message: Message) -> Message:
    content = message["content"]
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _with_calls(message: Message, needs: TemplateNeeds) -> list[Message]:
    """Return a message with calls; where its content would hide them, the content is a message before it."""
    if needs.text_arguments:
        calls = message["tool_calls"]
        assert isinstance(calls, list), "calls of a message are a list"
        message = {**message, "tool_calls": list(map(_with_text, calls))}
    if not needs.null_content:
        return [message]
    before = [{key: value for key, value in message.items() if key != "tool_calls"}] if message["content"] else []
    return [*before, {**message, "content": None}]


def _with_text(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["function"]["arguments"]
    if isinstance(arguments, str):
        return call
    text = made_of(json.dumps(arguments, ensure_ascii=False), arguments)
    return {**call, "function": {**call["function"], "arguments": text}}


def _without_system(messages: Sequence[Message]) -> list[Message]:
    merged: list[Message] = []
    waiting: list[object] = []
    for message in messages:
        if message["role"] == "system":
            waiting.append(message["content"])
        elif waiting and message["role"] == "user":
            merged.append({**message, "content": joined([*waiting, message["content"]], "\n\n")})
            waiting = []
        else:
            _add_to_user(merged, waiting)
            merged.append(message)
            waiting = []
    _add_to_user(merged, waiting)
    return merged


def _joined(messages: Sequence[Message]) -> list[Message]:
    if len(messages) < 2:
        return list(messages)
    return [{**messages[0], "content": joined([message["content"] for message in messages], "\n\n")}]


def _add_to_user(messages: list[Message], texts: Sequence[object]) -> None:
    """Put texts, if there are any, behind the last message if it is the user's, else into a message of their own."""
    if not texts:
        return
    before = [messages.pop()["content"]] if messages and messages[-1]["role"] == "user" else []
    messages.append({"role": "user", "content": joined([*before, *texts], "\n\n")})
