"""What the arguments of a call may be, read from their JSON schema."""

import re
from collections.abc import Mapping

from prolepsis.core.errors import InvalidParameter

Schema = Mapping[str, object]
_KEY = re.compile(r"""[^\s<>"'=\[\](){}|\\]+""")
KEY = _KEY.pattern
_ALL = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_OF_TYPE = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


def listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def kind_of(value: object) -> str:
    """Return a JSON value's type; whole numbers are integers."""
    return "null" if value is None else _OF_TYPE[type(value)]


def resolved(part: Schema, root: Schema) -> Schema:
    """Follow references inside the document; what none leads to allows anything."""
    for _ in range(16):
        target = part.get("$ref")
        if not isinstance(target, str):
            return part
        found: object = root
        for step in target.removeprefix("#").strip("/").split("/"):
            if step:
                found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        if not isinstance(found, dict):
            return {}
        part = found
    return {}


def kinds_of(part: Schema, root: Schema) -> frozenset[str]:
    """Return the types that a value may have; where numbers may stand, so may integers."""
    part = resolved(part, root)
    kind, choices = part.get("type"), [*listed(part.get("anyOf")), *listed(part.get("oneOf"))]
    if isinstance(kind, str | list):
        kinds = frozenset(one for one in ([kind] if isinstance(kind, str) else kind) if isinstance(one, str))
    elif "enum" in part or "const" in part:
        kinds = frozenset(kind_of(one) for one in (listed(part["enum"]) if "enum" in part else [part["const"]]))
    elif choices:
        kinds = frozenset().union(*(kinds_of(one, root) if isinstance(one, dict) else _ALL for one in choices))
    else:
        kinds = _ALL
    return kinds | {"integer"} if "number" in kinds else kinds


def named_properties(schema: Schema, function: str) -> tuple[dict[str, Schema], frozenset[str]]:
    """Return an object's properties and the names of those that are required.

    Raises `InvalidParameter` for a name that only quotes could hold together.
    """
    properties, required = schema.get("properties"), schema.get("required")
    named = properties if isinstance(properties, dict) else {}
    wrong = next((key for key in named if not _KEY.fullmatch(key)), None)
    if wrong is not None:
        of = f" of tool {function!r}" if function else ""
        message = f"the argument {wrong[:64]!r}{of} cannot be written in this model's calls"
        raise InvalidParameter(f"{message}; allowed: names without spaces, quotes, brackets and =", param="tools")
    parts: dict[str, Schema] = {key: part if isinstance(part, dict) else {} for key, part in named.items()}
    return parts, frozenset(one for one in listed(required) if isinstance(one, str))
