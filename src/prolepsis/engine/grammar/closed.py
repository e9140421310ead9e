"""Objects of client schemas that say nothing of unlisted names: closed, so that no names are invented; or bounded.

Only where an object lists names it is closed. Schemas that hold together for one value (`allOf`, and `anyOf`, `oneOf`
or `$ref` with something else) are closed as one, to the names that any of them lists.
"""

import copy
from collections.abc import Iterator, Mapping

from prolepsis.engine.grammar.satisfiable import is_local, placed, pointed

Schema = dict[str, object]
MAX_INVENTED = 256
"""Names that an object may have besides those that it requires, where the schema states no number."""
MAX_NAME = 128
"""Characters of such a name."""
_OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
"""Keywords that say which other names there may or must be."""
_MOST_PARTS = 64
"""Schemas that are closed as one."""
_NAME = f"^(?s:.{{0,{MAX_NAME}}})$"
_ANY = "any-json-value"
_ANY_REF = f"#/$defs/{_ANY}"
_ANY_SCHEMA: Schema = {
    "anyOf": [
        {"type": ["null", "boolean", "number", "string"]},
        {"type": "array", "items": {"$ref": _ANY_REF}},
        {
            "type": "object",
            "patternProperties": {_NAME: {"$ref": _ANY_REF}},
            "additionalProperties": False,
            "maxProperties": MAX_INVENTED,
        },
    ]
}


def closed(schema: Mapping[str, object]) -> Schema:
    """Return `schema` with its objects closed that list names and say nothing of others."""
    made = copy.deepcopy(dict(schema))
    parts = [part for _, part in placed(made)]
    inside = _joined(made, parts)
    for part in parts:
        if id(part) in inside or not (_is_joint(made, part) or part.get("properties")):
            continue
        together = _together(made, part)
        names = dict.fromkeys(name for one in together for name in _names(one))
        if not names or any(word in one for one in together for word in _OPEN):
            continue
        if len(together) == 1:
            properties = part["properties"]
            assert isinstance(properties, dict), "it has names"
            part |= {"properties": dict.fromkeys(names, True) | properties, "additionalProperties": False}
        else:
            before = part.get("allOf")
            close = {"properties": dict.fromkeys(names, True), "additionalProperties": False}
            part["allOf"] = [*(before if isinstance(before, list) else []), close]
    return made


def bounded(schema: Mapping[str, object]) -> Schema:
    """Return `schema` with a bound on the names that an answer invents, where no names are listed."""
    made = copy.deepcopy(dict(schema))
    parts = [part for _, part in placed(made)]
    inside, has_any = _joined(made, parts), False
    for part in parts:
        kinds = part.get("type")
        is_map = "object" in kinds if isinstance(kinds, list) else kinds == "object"
        if id(part) in inside or any(_groups(made, part)) or not is_map:
            continue
        if part.get("properties") or "patternProperties" in part or part.get("additionalProperties") is False:
            continue
        value = part.get("additionalProperties", True)
        if value is True or value == {}:
            value, has_any = {"$ref": _ANY_REF}, True
        part |= {"patternProperties": {_NAME: value}, "additionalProperties": False}
        required = part.get("required")
        part.setdefault("maxProperties", MAX_INVENTED + (len(required) if isinstance(required, list) else 0))
    if has_any:
        defs = made.get("$defs")
        made["$defs"] = {**(defs if isinstance(defs, dict) else {}), _ANY: copy.deepcopy(_ANY_SCHEMA)}
    return made


def _joined(root: Schema, parts: list[Schema]) -> set[int]:
    """Return which schemas hold only together with another one."""
    found = set[int]()
    waiting = [one for part in parts if _is_joint(root, part) for one in _members(root, part)]
    while waiting:
        one = waiting.pop()
        if id(one) not in found:
            found.add(id(one))
            waiting += _members(root, one)
    return found


def _is_joint(root: Schema, part: Schema) -> bool:
    """Say whether several schemas hold for the values of `part`."""
    groups = list(_groups(root, part))
    return bool(groups) and len(groups) + any(word in part for word in ("properties", "required", *_OPEN)) > 1


def _groups(root: Schema, part: Schema) -> Iterator[list[object]]:
    """Yield the schemas that hold for the same value as `part`; of those in a list one does."""
    if is_local(part.get("$ref")):
        yield [pointed(root, str(part["$ref"]))]
    for name in ("anyOf", "oneOf"):
        if isinstance(inner := part.get(name), list):
            yield inner
    inner = part.get("allOf")
    yield from ([one] for one in (inner if isinstance(inner, list) else ()) if one not in (True, {}))


def _members(root: Schema, part: Schema) -> list[Schema]:
    return [one for group in _groups(root, part) for one in group if isinstance(one, dict)]


def _together(root: Schema, part: Schema) -> list[Schema]:
    """Return the schemas that may hold for a value of `part`, itself first; none where they are too many."""
    found, seen = [part], {id(part)}
    for one in found:
        for inner in _members(root, one):
            if id(inner) not in seen:
                seen.add(id(inner))
                found.append(inner)
        if len(found) > _MOST_PARTS:
            return []
    return found


def _names(part: Schema) -> list[str]:
    """Return the names that a schema lists."""
    listed, required = part.get("properties"), part.get("required")
    names = [str(name) for name in required if isinstance(name, str)] if isinstance(required, list) else []
    return [*(listed if isinstance(listed, dict) else ()), *names]
