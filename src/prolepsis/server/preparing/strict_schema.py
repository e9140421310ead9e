"""OpenAI's subset of JSON Schema, which `strict` asks for."""

from collections.abc import Iterator

from prolepsis.core.errors import InvalidParameter

_MAX_DEPTH = 64
_LISTS = ("anyOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions")
_SINGLE = ("items",)
_REFUSED = ("allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties")


def check_strict(schema: dict[str, object], param: str) -> None:
    """Raise `InvalidParameter` naming the first place where `schema` leaves the strict subset.

    The root is an object; every object lists all its properties in `required` and has `additionalProperties: false`.
    """
    if schema.get("type") != "object":
        raise InvalidParameter(f"{param}: the root of a strict schema must have type 'object'", param=param)
    for path, part in _parts(schema, param, 0):
        _check_part(path, part, param)


def _parts(schema: dict[str, object], path: str, depth: int) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield every schema inside `schema`, itself first, with where it is."""
    if depth > _MAX_DEPTH:
        raise InvalidParameter(f"{path} is nested deeper than {_MAX_DEPTH} levels, the most allowed", param=path[:200])
    yield path, schema
    for name in (*_LISTS, *_MAPS, *_SINGLE):
        inner = schema.get(name)
        parts: list[tuple[str, object]] = []
        if name in _LISTS and isinstance(inner, list):
            parts = [(f"{path}.{name}[{i}]", part) for i, part in enumerate(inner)]
        elif name in _MAPS and isinstance(inner, dict):
            parts = [(f"{path}.{name}.{key[:64]}", part) for key, part in inner.items()]
        elif name in _SINGLE:
            parts = [(f"{path}.{name}", inner)]
        for where, part in parts:
            if isinstance(part, dict):
                yield from _parts(part, where, depth + 1)


def _check_part(path: str, schema: dict[str, object], param: str) -> None:
    refused = next((name for name in _REFUSED if name in schema), None)
    if refused is not None:
        raise InvalidParameter(f"{path}: strict schemas do not take {refused!r}; allowed: anyOf", param=param)
    kinds = schema.get("type")
    is_object = kinds == "object" or (isinstance(kinds, list) and "object" in kinds) or "properties" in schema
    if not is_object:
        return
    if schema.get("additionalProperties") is not False:
        raise InvalidParameter(f"{path}: strict objects must have 'additionalProperties': false", param=param)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        raise InvalidParameter(f"{path}: 'properties' must be an object and 'required' a list", param=param)
    listed = {name for name in required if isinstance(name, str)}
    missing = next((name for name in properties if name not in listed), None)
    if missing is not None:
        message = f"{path}: strict objects must list every property in 'required'; {missing[:64]!r} is missing"
        raise InvalidParameter(message, param=param)
