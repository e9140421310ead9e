"""Messages of a conversation as clients send them."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from prolepsis.server.fields import Body, Name, Text


class CalledFunction(Body):
    name: Name
    arguments: str
    """JSON, as the model wrote it."""


class ToolCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=128)] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    """Of earlier answers; shown to the model where its template wants it, as `name` is."""

    @model_validator(mode="after")
    def _fits_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError(f"role {self.role!r} takes no field 'tool_calls'; allowed: assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("'tool_call_id' is needed in messages of role 'tool', and only there")
        if self.content is None and not self.tool_calls:
            raise ValueError("'content' must be a string or a list of text parts; given: null")
        return self
