"""The API in the console: every route with its body and its answers, from the OpenAPI document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_REF = "#/components/schemas/"


@dataclass(frozen=True, slots=True)
class Field:
    name: str
    kind: str
    required: bool
    about: str


@dataclass(frozen=True, slots=True)
class Operation:
    """A route; `body` are the fields that a request may have."""

    method: str
    path: str
    summary: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]


def operations(document: Mapping[str, Any]) -> Iterator[Operation]:
    """Yield the routes of an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    for path, methods in document["paths"].items():
        for method, entry in methods.items():
            content = entry.get("requestBody", {}).get("content", {}).get("application/json", {})
            name = content.get("schema", {}).get("$ref", "").removeprefix(_REF)
            parameters = tuple(
                Field(p["name"], f"{p['in']}, {kind_of(p['schema'])}", p.get("required", False), "")
                for p in entry.get("parameters", ())
            )
            yield Operation(method.upper(), path, entry["summary"], parameters, tuple(fields_of(schemas.get(name, {}))))


def fields_of(schema: Mapping[str, Any]) -> Iterator[Field]:
    """Yield the fields of an object's schema, those that are required first."""
    required = schema.get("required", ())
    named = schema.get("properties", {})
    for name in sorted(named, key=lambda name: name not in required):
        yield Field(name, kind_of(named[name]), name in required, named[name].get("description", ""))


def kind_of(schema: Mapping[str, Any]) -> str:
    """Return the type of a schema in a few words; null is left out, as every field may be absent."""
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(_REF)
    if "enum" in schema or "const" in schema:
        return " | ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if parts := schema.get("anyOf") or schema.get("oneOf"):
        return " | ".join(dict.fromkeys(kind for part in parts if (kind := kind_of(part)) != "null"))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {kind_of(schema.get('items', {}))}"
    low, high = schema.get("minimum"), schema.get("maximum")
    return f"{kind} {low} to {high}" if low is not None and high is not None else str(kind)
