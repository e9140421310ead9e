"""Request bodies of /tokenize and /detokenize, in vLLM's shapes."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from prolepsis.server.fields import Body, Count
from prolepsis.server.messages import Message
from prolepsis.server.tool_bodies import Tools


class TokenizeBody(Body):
    """Either a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool | None = None
    """Default: true for a text, false for a conversation, whose template has them."""
    add_generation_prompt: bool = True
    return_token_strs: bool = False
    tools: Tools | None = None
    chat_template_kwargs: dict[str, object] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("needs either 'prompt' or 'messages'")
        return self


class DetokenizeBody(Body):
    model: str | None = None
    tokens: Annotated[list[Count], Field(max_length=2**20)]
