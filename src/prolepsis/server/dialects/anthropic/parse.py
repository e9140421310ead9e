"""Bodies of Anthropic's Messages API, and the chat that one stands for."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, model_validator

from prolepsis.control.web.fields import ClientBody, Count, NoEffect, Schema, Seed, Served, Stop
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.validation import Number
from prolepsis.server.dialects.dialect import ForeignRequest, call, form_of, tool
from prolepsis.server.preparing.bodies import (
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatBody,
    Message,
    NamedTool,
    ToolChoice,
    ToolName,
)

_BETWEEN = "\n\n"
"""Between two texts of one turn."""
_REMINDER = "<system-reminder>"
"""Begins a text that clients put among the user's, or behind a result, and that is not the user's."""
_NEEDS = {
    "text": ("text",),
    "thinking": ("thinking",),
    "redacted_thinking": (),
    "tool_use": ("id", "name", "input"),
    "tool_result": ("tool_use_id",),
}
_BLOCKS_OF = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}


def _one_block(value: object) -> object:
    return [{"type": "text", "text": value}] if isinstance(value, str) else value


class MessagesText(ClientBody):
    type: Literal["text"]
    text: str
    cache_control: object = None  # taken: every prefix is cached


_Texts = Annotated[list[MessagesText], Field(fail_fast=True)]
Texts: TypeAlias = Annotated[_Texts, BeforeValidator(_one_block, json_schema_input_type=str | _Texts)]


class Block(ClientBody):
    """A part of a turn; which fields it has depends on its type."""

    type: Literal["text", "thinking", "redacted_thinking", "tool_use", "tool_result"]
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Schema | None = None
    tool_use_id: str | None = None
    content: Texts | None = None
    is_error: bool | None = None
    signature: object = None
    data: object = None
    cache_control: object = None
    """These three are taken: nothing has to be proved, redacted thinking is not seen, and every prefix is cached."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = next((name for name in _NEEDS[self.type] if getattr(self, name) is None), None)
        if missing is not None:
            raise ValueError(f"a block of type {self.type!r} needs field {missing!r}")
        return self


_Blocks = Annotated[list[Block], Field(fail_fast=True)]


class MessagesTurn(ClientBody):
    role: Literal["user", "assistant", "system"]
    content: Annotated[_Blocks, BeforeValidator(_one_block, json_schema_input_type=str | _Blocks)]

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        wrong = next((block.type for block in self.content if block.type not in _BLOCKS_OF[self.role]), None)
        if wrong is not None:
            raise ValueError(f"role {self.role!r} has blocks of type {', '.join(_BLOCKS_OF[self.role])}, not {wrong!r}")
        return self


class MessagesTool(ClientBody):
    name: Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,128}$")]
    type: Literal["custom"] | None = None
    description: str | None = None
    input_schema: Schema
    strict: bool | None = None
    cache_control: object = None


Tools: TypeAlias = Annotated[list[MessagesTool], Field(max_length=MAX_TOOLS), Served(("custom",))]
"""Anthropic's own tools, which have no schema, are left out and named."""


class MessagesToolChoice(ClientBody):
    type: Literal["auto", "any", "tool", "none"]
    name: str = ""
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(ClientBody):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]


class OutputFormat(ClientBody):
    type: Literal["json_schema"]
    schema_: Annotated[Schema, Field(alias="schema")]


class OutputConfig(ClientBody):
    format: OutputFormat | None = None


class CountTokensBody(ForeignRequest):
    messages: Annotated[list[MessagesTurn], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]
    system: Texts | None = None
    tools: Tools | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    context_management: Annotated[object, NoEffect()] = None


class MessagesBody(CountTokensBody):
    max_tokens: Annotated[int, Field(ge=1, le=2**31 - 1)]
    stop_sequences: Stop | None = None
    stream: bool | None = None
    temperature: Number | None = None
    top_k: Count | None = None
    top_p: Number | None = None
    metadata: dict[str, object] | None = None
    seed: Seed | None = None  # our own field


def to_chat(body: CountTokensBody) -> ChatBody:
    choice, form = body.tool_choice, body.output_config and body.output_config.format
    tools = [tool(given.name, given.description, given.input_schema, strict=given.strict) for given in body.tools or ()]
    return ChatBody.model_construct(
        model=body.model,
        messages=list(_joined(_messages(body))),
        tools=tools or None,
        tool_choice=_choice(choice) if choice else None,
        parallel_tool_calls=not choice.disable_parallel_tool_use if choice else None,
        response_format=form_of(form.schema_) if form else None,
        continue_final_message=body.messages[-1].role == "assistant",
        chat_template_kwargs={"enable_thinking": body.thinking.type != "disabled"} if body.thinking else None,
        **(_sampling(body) if isinstance(body, MessagesBody) else {}),
    )


def _sampling(body: MessagesBody) -> dict[str, Any]:
    return {
        "max_completion_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "metadata": {name: value for name, value in (body.metadata or {}).items() if isinstance(value, str)},
        **{name: getattr(body, name) for name in ("stream", "temperature", "top_k", "top_p", "seed")},
    }


def _messages(body: CountTokensBody) -> Iterator[Message]:
    """Yield a message a block; system texts of later turns stay at their place, as reminders: templates refuse them."""
    for text in body.system or ():
        yield Message(role="system", content=text.text)
    is_begun = False
    for turn in body.messages:
        is_begun |= turn.role != "system"
        for block in turn.content:
            if turn.role == "system" and is_begun:
                yield Message(role="user", content=f"{_REMINDER}\n{block.text}\n</system-reminder>")
            else:
                yield from _message(turn.role, block)


def _message(role: Literal["user", "assistant", "system"], block: Block) -> Iterator[Message]:
    if block.type == "text":
        yield Message(role=role, content=block.text)
    elif block.type == "thinking":
        yield Message(role=role, content="", reasoning_content=block.thinking)
    elif block.type == "tool_use":
        yield Message(role=role, content="", tool_calls=[call(block.id or "", block.name or "", block.input or {})])
    elif block.type == "tool_result":
        text = _BETWEEN.join(part.text for part in block.content or ())
        text = f"Error: {text}" if block.is_error else text
        yield Message(role="tool", content=text, tool_call_id=block.tool_use_id)


def _joined(messages: Iterator[Message]) -> Iterator[Message]:
    """Join neighbours of one role, and reminders with the result before them, as templates take one message a turn."""
    group = list[Message]()
    for message in messages:
        is_reminder = message.role == "user" and (message.content or "").startswith(_REMINDER)
        if group and not (is_reminder if group[0].role == "tool" else message.role == group[0].role):
            yield _one(group)
            group = []
        group.append(message)
    if not group:
        raise InvalidParameter("messages have no content; allowed: one block or more", param="messages")
    yield _one(group)


def _one(group: list[Message]) -> Message:
    thoughts = [message.reasoning_content for message in group if message.reasoning_content]
    joined = {
        "content": _BETWEEN.join(message.content for message in group if message.content),
        "reasoning_content": _BETWEEN.join(thoughts) or None,
        "tool_calls": [call for message in group for call in message.tool_calls or ()] or None,
    }
    return group[0].model_copy(update=joined)


def _choice(choice: MessagesToolChoice) -> ToolChoice:
    if choice.type == "tool":
        return NamedTool(type="function", function=ToolName.model_construct(name=choice.name))
    return "required" if choice.type == "any" else choice.type
