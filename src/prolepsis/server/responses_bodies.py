"""Request body of /v1/responses: stateless, so that all of the conversation is in `input`."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from prolepsis.server.bodies import SharedBody
from prolepsis.server.fields import Body, Count, Name, Schema, Text, TopLogprobs

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
