"""Objects of client schemas that say nothing of unlisted names: closed, so that no names are invented; or bounded.

Only where an object lists names it is closed. Schemas that hold together for one value, at whatever depth, are closed
as one, to the names that any of them lists.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import count

from prolepsis.engine.text.grammar.references import rooted
from prolepsis.engine.text.grammar.satisfiable import also, listed, mapped, placed
from prolepsis.engine.text.grammar.values import OPEN, groups, values

Schema = dict[str, object]
MAX_INVENTED = 256
"""Names that an object may have besides those that it requires, where the schema states no number."""
MAX_NAME = 128  # characters of such a name
_NAME = f"^(?s:.{{0,{MAX_NAME}}})$"


def closed(schema: Mapping[str, object]) -> Schema:
    """Return `schema` with its objects closed that list names and say nothing of others."""
    made = rooted(schema)
    try:
        found, _ = values(made)
    except TimeoutError:
        return made
    sources = {id(one.schema): one.schema for value in found for one in value.held[: value.num_sources]}
    alone = {id(one.held[0].schema) for one in found if len(one.held) == 1}
    names, is_open = defaultdict[int, dict[str, object]](dict), set[int]()
    for value in found:
        for one in value.held:
            if id(one.schema) in sources:
                beside = [other.schema for other in value.held if one.beside(other)]
                names[id(one.schema)] |= {name: True for other in beside for name in _names(other)}
                if any(other.get(word, False) is not False for other in beside for word in OPEN):
                    is_open.add(id(one.schema))
    for key, part in sources.items():
        if key not in is_open and names[key]:
            _close(part, names[key], alone=key in alone)
    return made


def _close(part: Schema, names: Schema, *, alone: bool) -> None:
    if not alone:
        also(part, {"properties": names, "additionalProperties": False})
    elif (properties := mapped(part, "properties")) and "additionalProperties" not in part:
        part |= {"properties": names | properties, "additionalProperties": False}


def bounded(schema: Mapping[str, object]) -> Schema:
    """Return `schema` with a bound on the names that an answer invents, where no names are listed."""
    made = rooted(schema)
    try:
        _, joined = values(made)
    except TimeoutError:
        return made
    defs = mapped(made, "$defs")
    name = next(one for i in count() if (one := f"any-json-value{i or ''}") not in defs)
    for _, part in list(placed(made)):
        kinds = part.get("type")
        is_map = "object" in kinds if isinstance(kinds, list) else kinds == "object"
        if id(part) in joined or any(groups(made, part)) or not is_map:
            continue
        if part.get("properties") or "patternProperties" in part or part.get("additionalProperties") is False:
            continue
        value = part.get("additionalProperties", True)
        if value is True or value == {}:
            inner: Schema = {"$ref": f"#/$defs/{name}"}
            made["$defs"], value = {**defs, name: _any_schema(inner)}, inner
        part |= {"patternProperties": {_NAME: value}, "additionalProperties": False}
        part.setdefault("maxProperties", MAX_INVENTED + len(listed(part, "required")))
    return made


def _any_schema(inner: Schema) -> Schema:
    simple = {"type": ["null", "boolean", "number", "string"]}
    names = {"type": "object", "patternProperties": {_NAME: inner}, "additionalProperties": False}
    return {"anyOf": [simple, {"type": "array", "items": inner}, {**names, "maxProperties": MAX_INVENTED}]}


def _names(part: Schema) -> list[str]:
    return [*mapped(part, "properties"), *(name for name in listed(part, "required") if isinstance(name, str))]
