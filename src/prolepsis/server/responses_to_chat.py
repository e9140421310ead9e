"""A /v1/responses body read as the chat it stands for."""

from prolepsis.core.errors import InvalidParameter, UserError
from prolepsis.server.bodies import ChatBody, SharedBody
from prolepsis.server.format_bodies import JsonSchemaBody, ResponseFormat
from prolepsis.server.messages import CalledFunction, Message, ToolCall
from prolepsis.server.responses_bodies import LOGPROBS, InputItem, ResponsesBody, ResponsesToolChoice, TextFormat
from prolepsis.server.tool_bodies import (
    AllowedTool,
    AllowedTools,
    FunctionBody,
    ToolBody,
    ToolChoiceBody,
    ToolName,
)

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
