"""Which schemas of a document hold together for one value, at every depth."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prolepsis.engine.text.grammar.patterns import is_found
from prolepsis.engine.text.grammar.satisfiable import is_local, listed, mapped, placed, pointed

Schema = dict[str, object]
OPEN = ("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties")
"""Keywords that say which other names there may or must be."""
_CONDITIONS = ("if", "then", "else")
_DEPENDENT = ("dependencies", "dependentSchemas")
_MOST_PARTS = 64  # schemas of one value that are looked at together
_MOST_LOOKS = 100_000  # schemas that are looked at in all, each value's for itself
MOST_MATCHES = 1_000_000  # names that are matched with patterns of names


class TooMany(TimeoutError):
    """More schemas hold together than are looked at."""


@dataclass(frozen=True, slots=True)
class HeldSchema:
    """A schema that holds for a value if of each choice on the way, by its schema and keyword, one is taken."""

    schema: Schema
    choices: Mapping[tuple[int, str], int]

    def beside(self, other: "HeldSchema") -> bool:
        return all(other.choices.get(key, taken) == taken for key, taken in self.choices.items())


@dataclass(frozen=True, slots=True)
class Value:
    """What holds together for a value, first the schemas of which it is a value (`sources`)."""

    held: tuple[HeldSchema, ...]
    num_sources: int


def values(root: Schema) -> tuple[list[Value], set[int]]:
    """Return the values inside of `root`, and the identities of schemas that hold with others that lead to them.

    Raises `TimeoutError` where that takes too long.
    """
    parts, looks = [part for _, part in placed(root)], 0
    joined = {id(item) for part in parts if _is_joint(root, part) for _, group in groups(root, part) for item in group}
    while True:
        num_joined, inside, seen = len(joined), list[Value](), set[frozenset[int]]()
        for part in parts:
            waiting = [] if id(part) in joined else [[HeldSchema(part, {})]]
            while waiting:
                sources = waiting.pop()
                if (key := frozenset(id(source.schema) for source in sources)) in seen:
                    continue
                seen.add(key)
                held = _together(root, sources)
                looks += len(held)
                if looks > _MOST_LOOKS:
                    raise TooMany
                joined.update(id(source.schema) for source in held[len(sources) == 1 :])
                if len(held) <= _MOST_PARTS:
                    inside.append(Value(held, len(sources)))
                    waiting += [inner for inner in _inner(held) if len({id(source.schema) for source in inner}) > 1]
        if len(joined) == num_joined:
            return inside, joined


def _is_joint(root: Schema, part: Schema) -> bool:
    pairs = list(groups(root, part))
    return bool(pairs) and len(pairs) + any(word in part for word in ("properties", "required", *OPEN)) > 1


def groups(root: Schema, part: Schema) -> Iterator[tuple[str, list[object]]]:
    """Yield the schemas that hold for the same value as `part`, with their keyword; of those in a list one does."""
    if is_local(part.get("$ref")):
        yield "$ref", [pointed(root, str(part["$ref"]))]
    for name in ("anyOf", "oneOf"):
        if isinstance(inner := part.get(name), list):
            yield name, inner
    yield from (("allOf", [schema]) for schema in listed(part, "allOf") if schema not in (True, {}))
    others = [part.get(name) for name in _CONDITIONS]
    others += [schema for name in _DEPENDENT for schema in mapped(part, name).values()]
    for condition in others:
        if isinstance(condition, dict):
            yield "if", [condition]


def _together(root: Schema, sources: list[HeldSchema]) -> tuple[HeldSchema, ...]:
    """Return what holds with the sources, these first."""
    result, seen = list(sources), {id(source.schema) for source in sources}
    if len(sources) == 1 and not _is_joint(root, sources[0].schema):
        return tuple(result)
    for held in result:
        for name, group in groups(root, held.schema):
            for i, inner in enumerate(group):
                if isinstance(inner, dict) and id(inner) not in seen:
                    seen.add(id(inner))
                    taken = {(id(held.schema), name): i} if len(group) > 1 else {}
                    result.append(HeldSchema(inner, {**held.choices, **taken}))
    return tuple(result)


def _inner(held: tuple[HeldSchema, ...]) -> Iterator[list[HeldSchema]]:
    """Yield for each value inside of a value the schemas that say what it is."""
    if len(held) == 1 and "patternProperties" not in held[0].schema:
        return
    names = dict.fromkeys(name for part in held for name in mapped(part.schema, "properties"))
    patterns = dict.fromkeys(name for part in held for name in mapped(part.schema, "patternProperties"))
    if len(names) * len(patterns) > MOST_MATCHES:
        raise TooMany
    length = max((len(_first(part.schema)) for part in held), default=0)
    for name in names:
        yield _dicts((part, inner) for part in held for inner in _of_name(part.schema, name))
    for pattern in patterns:
        yield _dicts((part, mapped(part.schema, "patternProperties").get(pattern, _rest(part.schema))) for part in held)
    for i in range(length):
        yield _dicts((part, [*_first(part.schema)[i : i + 1], _items(part.schema)][0]) for part in held)
    yield _dicts((part, _rest(part.schema)) for part in held)
    yield _dicts((part, _items(part.schema)) for part in held)


def _dicts(pairs: Iterator[tuple[HeldSchema, object]]) -> list[HeldSchema]:
    return [HeldSchema(inner, part.choices) for part, inner in pairs if isinstance(inner, dict)]


def _of_name(schema: Schema, name: str) -> list[object]:
    listed = mapped(schema, "properties")
    schemas = [listed[name]] if name in listed else []
    schemas += [inner for pattern, inner in mapped(schema, "patternProperties").items() if is_found(pattern, name)]
    return schemas or [_rest(schema)]


def _rest(schema: Schema) -> object:
    return schema.get("additionalProperties")


def _first(schema: Schema) -> list[object]:
    return listed(schema, "prefixItems" if "prefixItems" in schema else "items")


def _items(schema: Schema) -> object:
    return schema.get("additionalItems" if isinstance(schema.get("items"), list) else "items")
