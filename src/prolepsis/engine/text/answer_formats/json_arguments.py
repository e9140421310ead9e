"""Arguments as one JSON object."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.text.answer_formats.schemas import Function

_INDENTED = r"( |\n {0,64})?"  # white space between the parts of an indented object, bounded


@dataclass(frozen=True, slots=True)
class JsonArguments:
    """The object as `json.dumps` spaces it, or indented by four spaces."""

    is_indented: bool = False
    margin: int = 0  # spaces before each further line of an indented object

    @property
    def texts(self) -> tuple[str, ...]:
        return ()

    def write(self, arguments: Mapping[str, object]) -> str:
        text = json.dumps(arguments, ensure_ascii=False, indent=4 if self.is_indented else None)
        return text.replace("\n", "\n" + " " * self.margin)

    def grammar(self, function: Function, rule: str) -> tuple[str, list[str]]:
        """Return the schema's grammar; keywords that cannot be enforced are ignored unless the function is strict."""
        spaced = {"whitespace_pattern": _INDENTED} if self.is_indented else JSON_STYLE
        schema = {**object_schema(function), "x-guidance": {**spaced, "lenient": not function.strict}}
        return f"%json {json.dumps(schema, ensure_ascii=False)}", []

    def reader(self, function: Function, tail: str) -> "JsonObject":
        return JsonObject()


def object_schema(function: Function) -> dict[str, object]:
    """Return the schema of a call's arguments, always that of an object."""
    schema = function.parameters
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return dict(schema) if "type" in schema or "$ref" in schema else {"type": "object", **schema}


class JsonObject:
    """Finds where a JSON object ends without parsing it; a `<` outside of its strings ends it too."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def read(self, text: str) -> tuple[str, int]:
        """Return what of `text` belongs to the object, and its length."""
        end = self._end(text)
        return text[:end], end

    def _end(self, text: str) -> int:
        for i, char in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif char == "\\":
                    self._escaped = True
                elif char == '"':
                    self._in_string = False
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.ended = True
                    return i + 1
            elif char == "<":
                self.ended = True
                return i
        return len(text)
