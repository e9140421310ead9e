"""Request body of /v1/responses, the chat that it stands for, and the items of its conversation."""

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, Tag, TypeAdapter, model_validator

from prolepsis.control.web.fields import Body, FunctionName, MaxTokens, Name, Schema, Served, Text, TopLogprobs
from prolepsis.core.errors import InvalidParameter, UserError
from prolepsis.server.answering.usage import Json
from prolepsis.server.openai.response_items import item_id
from prolepsis.server.openai.response_tools import (
    TOOL_TYPES,
    AllowedFunctions,
    CallableTool,
    NamedCall,
    NamedFunction,
    ResponseTool,
    by_type,
    callable_tools,
    chat_choice,
    chat_tool,
)
from prolepsis.server.preparing.bodies import (
    MAX_MESSAGES,
    MAX_TOOLS,
    CalledFunctionBody,
    ChatBody,
    Message,
    ResponseFormat,
    SharedBody,
    ToolCallBody,
    ToolWord,
)

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = Served((LOGPROBS,))


class TextFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        has_schema = self.schema_ is not None and self.name is not None
        if self.type == "json_schema" and not has_schema:
            raise ValueError("type 'json_schema' needs fields 'name' and 'schema'")
        schema = None if self.type == "json_object" else self.schema_
        if self.type != "json_schema" and (schema, self.name, self.strict) != (None, None, None):
            raise ValueError(f"type {self.type!r} takes no fields 'name', 'schema' or 'strict'")
        return self


class TextConfig(Body):
    format: TextFormat | None = None


class _Item(Body):
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class InputMessage(_Item):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Text


class InputCall(_Item):
    """A function call that the model made."""

    type: Literal["function_call"]
    call_id: str
    name: FunctionName
    namespace: FunctionName | None = None
    arguments: str


class InputCustomCall(_Item):
    """A call of a custom tool that the model made."""

    type: Literal["custom_tool_call"]
    call_id: str
    name: FunctionName
    namespace: FunctionName | None = None
    input: str

    @property
    def arguments(self) -> str:
        return json.dumps({"input": self.input}, ensure_ascii=False)


class InputResult(_Item):
    """Result of a call. Without `call_id` it is a text that the client adds by itself, as Codex does with its goal."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    output: Text

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.call_id is None and self.name is None:
            raise ValueError("'call_id' is needed, or the 'name' of what it is the result of")
        return self


class InputReasoning(_Item):
    """Reasoning of an earlier answer; the model does not see it."""

    type: Literal["reasoning"]
    content: Text | None = None
    encrypted_content: str | None = None
    summary: Annotated[list[Schema], Field(fail_fast=True)] | None = None


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[InputCall, Tag("InputCall")]
    | Annotated[InputCustomCall, Tag("InputCustomCall")]
    | Annotated[InputResult, Tag("InputResult")]
    | Annotated[InputReasoning, Tag("InputReasoning")],
    by_type(
        "InputMessage",
        function_call="InputCall",
        custom_tool_call="InputCustomCall",
        function_call_output="InputResult",
        custom_tool_call_output="InputResult",
        reasoning="InputReasoning",
    ),
]
_Items = Annotated[list[InputItem], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)]


def _one_message(value: object) -> object:
    if not isinstance(value, str | list):
        raise ValueError("must be a string or a list of items")
    return [{"role": "user", "content": value or ""}] if isinstance(value, str) or not value else value


class ResponsesBody(SharedBody):
    input: Annotated[_Items, BeforeValidator(_one_message, json_schema_input_type=str | _Items)]
    instructions: Text | None = None
    max_output_tokens: MaxTokens | None = None
    store: bool | None = None
    previous_response_id: Annotated[str, Field(max_length=64)] | None = None
    background: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS), TOOL_TYPES] | None = None
    tool_choice: ToolWord | NamedFunction | AllowedFunctions | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    top_logprobs: TopLogprobs | None = None
    include: Annotated[list[Literal["message.output_text.logprobs"]], Field(fail_fast=True), _INCLUDED] | None = None
    chat_template_kwargs: dict[str, object] | None = None
    parse_special: bool | None = None

    @property
    def callable(self) -> list[tuple[NamedCall, CallableTool]]:
        """Tools that may be called, each with what its calls are called."""
        return callable_tools(self.tools or ())


_ITEMS = TypeAdapter[list[InputItem]](list[InputItem])
_SHARED = frozenset(SharedBody.model_fields)
_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "logprobs": "include",
}
"""Where this endpoint has what chat calls otherwise."""


def shown_items(items: Sequence[InputItem]) -> list[Json]:
    shown = list[Json]()
    for item in items:
        body: Json = {"id": item_id(item.type), "status": "completed", **item.model_dump(exclude_none=True)}
        if isinstance(item, InputMessage):
            kind = "output_text" if item.role == "assistant" else "input_text"
            body["content"] = [{"type": kind, "text": item.content}]
        elif isinstance(item, InputReasoning):
            body["content"] = [{"type": "reasoning_text", "text": item.content}] if item.content else []
        shown.append(body)
    return shown


def continued(body: ResponsesBody, earlier: Sequence[Mapping[str, object]]) -> ResponsesBody:
    """Return the body behind the items of an earlier conversation; raises `InvalidParameter` for too many."""
    items = [*_ITEMS.validate_python(earlier), *body.input]
    if len(items) > MAX_MESSAGES:
        message = f"input and the conversation before it hold {len(items)} items; allowed: at most {MAX_MESSAGES}"
        raise InvalidParameter(message, param="input")
    return body.model_copy(update={"input": items})


def without_oldest(body: ResponsesBody, fits: Callable[[ResponsesBody], bool]) -> ResponsesBody:
    """Return the body without the fewest of its oldest items so that it fits; the newest one stays.

    Instructions and messages of the system stay too, and no call goes without its output.
    """

    def cut(number: int) -> ResponsesBody:
        kept = [item for item in body.input[:number] if getattr(item, "role", "") in ("system", "developer")]
        return body.model_copy(update={"input": [*kept, *body.input[number:]]})

    if fits(body):
        return body
    cuts = _cuts(body.input)
    at = bisect_left(cuts, x=True, key=lambda number: fits(cut(number)))
    return cut(cuts[min(at, len(cuts) - 1)])


def _cuts(items: Sequence[InputItem]) -> list[int]:
    """Return how many items may go from the beginning."""
    outputs = {item.call_id: i for i, item in enumerate(items) if isinstance(item, InputResult)}
    cuts, end = [0], 0
    for i, item in enumerate(items[:-1]):
        if isinstance(item, InputCall | InputCustomCall):
            end = max(end, outputs.get(item.call_id, i))
        if i >= end:
            cuts.append(i + 1)
    return cuts


def to_chat(body: ResponsesBody) -> ChatBody:
    """Return the chat request that means the same; raises `InvalidParameter`."""
    logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs is not None and not logprobs:
        message = f"top_logprobs is given; allowed: only where include holds {LOGPROBS!r}"
        raise InvalidParameter(message, param="top_logprobs")
    shared = {name: getattr(body, name) for name in body.model_fields_set & _SHARED}
    return ChatBody.model_construct(
        **shared,
        messages=_messages(body),
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs,
        tools=[chat_tool(named, tool) for named, tool in body.callable] or None,
        tool_choice=chat_choice(body.tool_choice) if body.tool_choice else None,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text.format) if body.text and body.text.format else None,
        chat_template_kwargs=body.chat_template_kwargs,
        parse_special=body.parse_special,
    )


def renamed(error: UserError) -> UserError:
    """Return `error` with the field it names as this endpoint calls it."""
    field = error.param or ""
    if field.startswith("response_format"):
        error.param = field.replace("response_format.json_schema", "text.format").replace(
            "response_format", "text.format"
        )
    elif field.startswith("messages["):
        error.param = "input"
    else:
        error.param = _FIELDS.get(field, error.param and error.param.replace("].function.", "]."))
    return error


def _messages(body: ResponsesBody) -> list[Message]:
    messages = [Message(role="system", content=body.instructions)] if body.instructions else []
    for item in body.input:
        previous = messages[-1] if messages else None
        if isinstance(item, InputCall | InputCustomCall):
            name = NamedCall(item.name, item.namespace).function
            call = ToolCallBody(id=item.call_id, function=CalledFunctionBody(name=name, arguments=item.arguments))
            if previous is not None and previous.role == "assistant":
                joined = [*(previous.tool_calls or ()), call]
                messages[-1] = previous.model_copy(update={"tool_calls": joined})
            else:
                messages.append(Message(role="assistant", content="", tool_calls=[call]))
        elif isinstance(item, InputResult):
            role: Literal["tool", "user"] = "user" if item.call_id is None else "tool"
            messages.append(Message(role=role, content=item.output, tool_call_id=item.call_id))
        elif isinstance(item, InputMessage):
            messages.append(Message(role=item.role, content=item.content))
    if not messages:
        raise InvalidParameter("input holds no message; allowed: one or more", param="input")
    return messages


def _format(form: TextFormat) -> ResponseFormat:
    shown = form.model_dump(by_alias=True, exclude_none=True, exclude={"type", "description"})
    shown = {"json_schema": shown} if form.type == "json_schema" else shown
    return ResponseFormat.model_validate({"type": form.type, **shown})
