"""Request body of /v1/responses: stateless, so that all of the conversation is in `input`."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from prolepsis.api.openai.bodies import (
    AllowedTool,
    AllowedTools,
    CalledFunction,
    ChatBody,
    FunctionBody,
    JsonSchemaBody,
    Message,
    ResponseFormat,
    SharedBody,
    ToolBody,
    ToolCall,
    ToolChoiceBody,
    ToolName,
)
from prolepsis.core.errors import InvalidParameter, UserError
from prolepsis.web.fields import Body, Count, Name, Schema, Text, TopLogprobs

LOGPROBS = "message.output_text.logprobs"


class FunctionToolBody(Body):
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: Name


class ResponsesToolChoice(Body):
    """`tool_choice`: a bare word is read as {"type": word}."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    name: Name | None = None
    mode: Literal["auto", "required"] | None = None
    tools: Annotated[list[NamedTool], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.name is not None) != (self.type == "function"):
            raise ValueError(f"type {self.type!r} {'needs' if self.name is None else 'takes no'} field 'name'")
        if (self.mode is not None and self.tools is not None) != (self.type == "allowed_tools"):
            raise ValueError("type 'allowed_tools' needs fields 'mode' and 'tools', and no other type takes them")
        return self


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
        if self.type != "json_schema" and (self.schema_, self.name, self.strict) != (None, None, None):
            raise ValueError(f"type {self.type!r} takes no fields 'name', 'schema' or 'strict'")
        return self


class TextConfig(Body):
    format: TextFormat | None = None


class InputItem(Body):
    """A message, a function call the model made, what it returned, or reasoning from an earlier answer."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Text | None = None
    summary: list[Schema] | None = None
    call_id: str | None = None
    name: Name | None = None
    arguments: str | None = None
    output: Text | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        missing = next((name for name in _NEEDED[self.type] if getattr(self, name) is None), None)
        if missing is not None:
            raise ValueError(f"an item of type {self.type!r} needs field {missing!r}")
        return self


_NEEDED = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


def _one_message(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


def _word(value: object) -> object:
    return {"type": value} if value in ("none", "auto", "required") else value


_TEXT = {"type": "string"}
_STRINGS = {"type": "array", "items": {"type": "object"}}
_MESSAGE = {
    "type": "object",
    "properties": {
        "type": {"const": "message"},
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [_TEXT, _STRINGS]},
    },
    "required": ["role", "content"],
}
_CALL = {
    "type": "object",
    "properties": {"type": {"const": "function_call"}, "call_id": _TEXT, "name": _TEXT, "arguments": _TEXT},
    "required": ["type", "call_id", "name", "arguments"],
}
_OUTPUT = {
    "type": "object",
    "properties": {"type": {"const": "function_call_output"}, "call_id": _TEXT, "output": _TEXT},
    "required": ["type", "call_id", "output"],
}
_REASONING = {"type": "object", "properties": {"type": {"const": "reasoning"}}, "required": ["type"]}
_NAMED = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "name": _TEXT},
    "required": ["type", "name"],
    "additionalProperties": False,
}
_ALLOWED = {
    "type": "object",
    "properties": {
        "type": {"const": "allowed_tools"},
        "mode": {"enum": ["auto", "required"]},
        "tools": {"type": "array", "items": _NAMED, "minItems": 1},
    },
    "required": ["type", "mode", "tools"],
    "additionalProperties": False,
}

Input: TypeAlias = Annotated[
    list[InputItem],
    Field(min_length=1),
    BeforeValidator(_one_message),
    WithJsonSchema(
        {
            "anyOf": [
                _TEXT,
                {"type": "array", "minItems": 1, "items": {"anyOf": [_MESSAGE, _CALL, _OUTPUT, _REASONING]}},
            ]
        }
    ),
]


class ResponsesBody(SharedBody):
    input: Input
    instructions: str | None = None
    max_output_tokens: Annotated[Count, Field(ge=1)] | None = None
    tools: Annotated[list[FunctionToolBody], Field(max_length=128)] | None = None
    tool_choice: (
        Annotated[
            ResponsesToolChoice,
            BeforeValidator(_word),
            WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED, _ALLOWED]}),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[Literal["message.output_text.logprobs"]] | None = None
    chat_template_kwargs: dict[str, object] | None = None


_SHARED = frozenset(SharedBody.model_fields)
_FIELDS = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "logprobs": "include",
}
"""Where this endpoint has what chat calls otherwise."""


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
        tools=[_tool(tool.name, tool.description, tool.parameters, tool.strict) for tool in body.tools or ()] or None,
        tool_choice=_choice(body.tool_choice) if body.tool_choice else None,
        parallel_tool_calls=body.parallel_tool_calls,
        response_format=_format(body.text.format) if body.text and body.text.format else None,
        chat_template_kwargs=body.chat_template_kwargs,
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
        if item.type == "function_call":
            call = _call(item)
            if previous is not None and previous.role == "assistant":
                joined = [*(previous.tool_calls or ()), call]
                messages[-1] = previous.model_copy(update={"tool_calls": joined})
            else:
                messages.append(Message(role="assistant", content="", tool_calls=[call]))
        elif item.type == "function_call_output":
            messages.append(Message(role="tool", content=str(item.output), tool_call_id=item.call_id))
        elif item.type == "message":
            assert item.role is not None, "checked where the body was read"
            messages.append(Message(role=item.role, content=str(item.content)))
    if not messages:
        raise InvalidParameter("input holds no message; allowed: one or more", param="input")
    return messages


def _call(item: InputItem) -> ToolCall:
    function = CalledFunction(name=item.name or "", arguments=item.arguments or "")
    return ToolCall(id=item.call_id or "", function=function)


def _tool(name: str, description: str | None, parameters: dict[str, object] | None, strict: bool | None) -> ToolBody:
    function = FunctionBody(name=name, description=description, parameters=parameters, strict=strict)
    return ToolBody(type="function", function=function)


def _choice(choice: ResponsesToolChoice) -> ToolChoiceBody:
    allowed = None
    if choice.mode is not None and choice.tools is not None:
        tools = [AllowedTool(type="function", function=ToolName(name=tool.name)) for tool in choice.tools]
        allowed = AllowedTools(mode=choice.mode, tools=tools)
    function = ToolName(name=choice.name) if choice.name is not None else None
    return ToolChoiceBody(type=choice.type, function=function, allowed_tools=allowed)


def _format(form: TextFormat) -> ResponseFormat:
    schema = None
    if form.type == "json_schema":
        schema = JsonSchemaBody.model_validate({"name": form.name, "schema": form.schema_, "strict": form.strict})
    return ResponseFormat(type=form.type, json_schema=schema)
