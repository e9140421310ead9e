"""The form an answer must have: OpenAI's `response_format` and vLLM's `structured_outputs`."""

from typing import Annotated, Literal, Self

from pydantic import Field, WithJsonSchema, model_validator

from prolepsis.server.fields import Body, Name, Schema


class JsonSchemaBody(Body):
    name: Name
    description: str | None = None
    schema_: Annotated[Schema | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaBody | None = None

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.json_schema is not None) != (self.type == "json_schema"):
            raise ValueError(f"type {self.type!r} {'needs' if self.json_schema is None else 'takes no'} 'json_schema'")
        return self


class StructuredOutputs(Body):
    """Exactly one field says what the answer must be."""

    json_: Annotated[
        Schema | str | None,
        Field(alias="json"),
        WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string"}, {"type": "null"}]}),
    ] = None
    """A JSON schema, or its text."""
    regex: Annotated[str, Field(min_length=1)] | None = None
    choice: Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1, max_length=1024)] | None = None
    grammar: Annotated[str, Field(min_length=1)] | None = None
    """Lark, in llguidance's dialect."""
    json_object: Literal[True] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in STRUCTURED_FORMS if getattr(self, STRUCTURED_FORMS[name]) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(STRUCTURED_FORMS)}; given: {', '.join(given) or 'none'}")
        return self


STRUCTURED_FORMS = {
    "json": "json_",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "json_object": "json_object",
}
"""Attribute of each form by its name in JSON."""
