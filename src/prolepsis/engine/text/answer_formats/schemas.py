"""Functions that may be called, and what their arguments may be, read from their JSON schema."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prolepsis.core.errors import InvalidParameter

Schema = Mapping[str, object]
_KEY = re.compile(r"""[^\s<>"'=\[\](){}|\\]+""")
KEY_PATTERN = _KEY.pattern
_MOST_COUNTED = 2000  # longer limits of a text's length are not enforced
_ALL = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_OF_TYPE = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that may be called."""

    name: str
    parameters: Schema | None = None  # JSON schema of its arguments; None: it takes none
    strict: bool = False


def listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def values_of(part: Schema) -> list[object] | None:
    """Return the values that a schema lists; None: it lists none."""
    if "enum" in part:
        return listed(part["enum"])
    return [part["const"]] if "const" in part else None


def choices_of(part: Schema) -> list[object]:
    return [*listed(part.get("anyOf")), *listed(part.get("oneOf"))]


def takes_others(schema: Schema) -> bool:
    """Return whether an object without named properties may have any."""
    return schema.get("additionalProperties", "properties" not in schema) not in (False, None)


def kind_of(value: object) -> str:
    """Return a JSON value's type; whole numbers are integers."""
    return "null" if value is None else _OF_TYPE[type(value)]


def resolved(part: Schema, root: Schema) -> Schema:
    """Follow references inside the document; what none leads to allows anything."""
    for _ in range(16):
        target = part.get("$ref")
        if not isinstance(target, str):
            return part
        value: object = root
        for step in target.removeprefix("#").strip("/").split("/"):
            if step:
                value = value.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(value, dict) else None
        if not isinstance(value, dict):
            return {}
        part = value
    return {}


def kinds_of(part: Schema, root: Schema, within: frozenset[object] = frozenset()) -> frozenset[str]:
    """Return the types that a value may have; where numbers may stand, so may integers.

    `within` are the references that led here: one that comes back to itself adds nothing.
    """
    if "$ref" in part and part["$ref"] in within:
        return frozenset()
    within |= {part["$ref"]} if "$ref" in part else frozenset()
    part = resolved(part, root)
    kind, choices, values = part.get("type"), choices_of(part), values_of(part)
    if isinstance(kind, str | list):
        kinds = frozenset(name for name in ([kind] if isinstance(kind, str) else kind) if isinstance(name, str))
    elif values is not None:
        kinds = frozenset(map(kind_of, values))
    elif choices:
        kinds = frozenset().union(*(kinds_of(alt, root, within) if isinstance(alt, dict) else _ALL for alt in choices))
    else:
        kinds = _ALL
    return kinds | {"integer"} if "number" in kinds else kinds


def fits(value: object, part: Schema, root: Schema, within: frozenset[object] = frozenset()) -> bool:
    """Return whether a value has an allowed type and is among the values that the schema lists."""
    if "$ref" in part and part["$ref"] in within:
        return False
    within |= {part["$ref"]} if "$ref" in part else frozenset()
    part = resolved(part, root)
    if (values := values_of(part)) is not None:
        return any(value == allowed and kind_of(value) == kind_of(allowed) for allowed in values)
    choices = [choice for choice in choices_of(part) if isinstance(choice, dict)]
    if choices and "type" not in part:
        return any(fits(value, choice, root, within) for choice in choices)
    return kind_of(value) in kinds_of(part, root)


def length_bound(part: Schema) -> str:
    """Return how often a regex repeats a character in a text, as far as the schema bounds its length."""
    least, most = part.get("minLength"), part.get("maxLength")
    least = least if isinstance(least, int) and least <= _MOST_COUNTED else 0
    if isinstance(most, int) and most <= _MOST_COUNTED:
        return f"{{{least},{most}}}"
    return f"{{{least},}}" if least else "*"


def checked_choices(written: Sequence[str], values: Sequence[object]) -> Sequence[str]:
    """Return the values of an argument that can be written; raises `InvalidParameter` where none can."""
    if not written:
        shown = ", ".join(repr(value)[:64] for value in values[:4]) or "none"
        message = f"an argument's only values ({shown}) cannot be written in this model's calls"
        raise InvalidParameter(f"{message}; allowed: texts without the marks of its calls", param="tools")
    return written


def named_properties(
    schema: Schema, function: str, without: Sequence[str] | None = ()
) -> tuple[dict[str, Schema], frozenset[str]]:
    """Return an object's properties and the names of the required ones.

    Raises `InvalidParameter` for a name that only quotes could hold together, or that holds a text of `without`; None:
    names are quoted.
    """
    properties, required = schema.get("properties"), schema.get("required")
    named = properties if isinstance(properties, dict) else {}
    wrong = next((key for key in named if without is not None and not _is_plain(key, without)), None)
    if wrong is not None:
        of = f" of tool {function!r}" if function else ""
        message = f"the argument {wrong[:64]!r}{of} cannot be written in this model's calls"
        others = "".join(f" and {text.strip()}" for text in without or () if text.strip() not in ("", "="))
        allowed = f"names without spaces, quotes, brackets, ={others}"
        raise InvalidParameter(f"{message}; allowed: {allowed}", param="tools")
    parts: dict[str, Schema] = {key: part if isinstance(part, dict) else {} for key, part in named.items()}
    return parts, frozenset(name for name in listed(required) if isinstance(name, str))


def _is_plain(key: str, without: Sequence[str]) -> bool:
    return _KEY.fullmatch(key) is not None and not any(text.strip() in key for text in without)
