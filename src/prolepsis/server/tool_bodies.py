"""Tools in a request: what the model may call, and whether it must."""

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from prolepsis.server.fields import Body, Name, Schema

MAX_TOOLS = 128


class FunctionBody(Body):
    name: Name
    description: str | None = None
    parameters: Schema | None = None
    """JSON schema of the arguments; without one the function takes none."""
    strict: bool | None = None


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody


class ToolName(Body):
    name: Name


class AllowedTool(Body):
    type: Literal["function"]
    function: ToolName


class AllowedTools(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Field(min_length=1, max_length=MAX_TOOLS)]


class ToolChoiceBody(Body):
    """`tool_choice`: a bare word is read as {"type": word}."""

    type: Literal["none", "auto", "required", "function", "allowed_tools"]
    function: ToolName | None = None
    allowed_tools: AllowedTools | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        for name, given in (("function", self.function), ("allowed_tools", self.allowed_tools)):
            if (given is not None) != (self.type == name):
                raise ValueError(f"type {self.type!r} {'needs' if given is None else 'takes no'} field {name!r}")
        return self


def _word(value: object) -> object:
    return {"type": value} if value in ("none", "auto", "required") else value


_NAMED = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_TOOL = {
    "type": "object",
    "properties": {"type": {"const": "function"}, "function": _NAMED},
    "required": ["type", "function"],
    "additionalProperties": False,
}
_ALLOWED = {
    "type": "object",
    "properties": {"mode": {"enum": ["auto", "required"]}, "tools": {"type": "array", "items": _TOOL, "minItems": 1}},
    "required": ["mode", "tools"],
    "additionalProperties": False,
}
_ALLOWED_CHOICE = {
    "type": "object",
    "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": _ALLOWED},
    "required": ["type", "allowed_tools"],
    "additionalProperties": False,
}

Tools: TypeAlias = Annotated[list[ToolBody], Field(max_length=MAX_TOOLS)]
ToolChoice: TypeAlias = Annotated[
    ToolChoiceBody,
    BeforeValidator(_word),
    WithJsonSchema({"anyOf": [{"enum": ["none", "auto", "required"]}, _TOOL, _ALLOWED_CHOICE]}),
]
