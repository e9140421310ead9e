"""Finds the references of a JSON schema that come back to themselves, or that no finite value satisfies."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from urllib.parse import unquote

MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
"""Keywords whose value holds schemas by names that are free."""
DATA = ("const", "enum", "default", "examples")  # keywords whose value is no schema
_MOST_PARTS = 64
"""Parts of one schema that are looked at together; a longer chain of references is judged link by link."""


def placed(value: object) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield every schema inside `value` with its place, itself first."""
    stack = [("", value, False)]
    while stack:
        place, value, in_map = stack.pop()
        if isinstance(value, list):
            stack += [(f"{place}[{i}]", part, False) for i, part in enumerate(value)]
        elif isinstance(value, dict):
            if not in_map:
                yield place, value
            stack += [
                (f"{place}.{name}" if place else name, part, not in_map and name in MAPS)
                for name, part in value.items()
                if in_map or name not in DATA
            ]


def schemas(value: object) -> Iterator[dict[str, object]]:
    """Yield every schema inside `value`, itself first."""
    return (schema for _, schema in placed(value))


def pointed(root: object, reference: str) -> object:
    """Return what a local reference (`#`, `#/a/b`) points at; None: nothing."""
    found = root
    for name in reference.removeprefix("#").split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict):
            found = found.get(key)
        elif isinstance(found, list) and key.isdecimal() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def listed(schema: Mapping[str, object], name: str) -> list[object]:
    """Return the list of a keyword; empty where it is none."""
    return found if isinstance(found := schema.get(name), list) else []


def mapped(schema: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the object of a keyword; empty where it is none."""
    return found if isinstance(found := schema.get(name), dict) else {}


def also(schema: dict[str, object], more: dict[str, object]) -> None:
    schema["allOf"] = [*listed(schema, "allOf"), more]


def is_local(reference: object) -> bool:
    return isinstance(reference, str) and (reference == "#" or reference.startswith("#/"))


def dead_references(root: Mapping[str, object]) -> frozenset[str]:
    """Return the local references to schemas without any finite value; a least fixed point over the references."""
    targets = {
        str(schema["$ref"]): pointed(root, str(schema["$ref"]))
        for schema in schemas(root)
        if is_local(schema.get("$ref"))
    }
    targets["#"] = root
    judge = _Judge(root)
    waiting = list(targets)
    users = defaultdict[str, set[str]](set)
    while waiting:
        reference = waiting.pop()
        if reference in judge.alive:
            continue
        judge.asked.clear()
        if judge.may_have(targets[reference]):
            judge.alive.add(reference)
            waiting += users[reference]
        else:
            for asked in judge.asked:
                users[asked].add(reference)
    return frozenset(targets) - judge.alive


def loop(root: Mapping[str, object]) -> str | None:
    """Return a local reference that comes back to itself without a step into a value: no validator can follow it."""
    waiting = [str(schema["$ref"]) for schema in schemas(root) if is_local(schema.get("$ref"))]
    in_place = dict[str, list[str]]()
    while waiting:
        if (name := waiting.pop()) not in in_place:
            in_place[name] = _in_place(pointed(root, name))
            waiting += in_place[name]
    try:
        TopologicalSorter(in_place).prepare()
    except CycleError as error:
        return str(error.args[1][0])
    return None


def _in_place(schema: object) -> list[str]:
    """Return the local references that hold for the same value as `schema`."""
    names, waiting = list[str](), [schema]
    for part in waiting:
        if isinstance(part, dict):
            names += [str(part["$ref"])] if is_local(part.get("$ref")) else []
            waiting += [one for name in ("allOf", "anyOf", "oneOf") for one in listed(part, name)]
    return names


class _Judge:
    """Says whether a schema may have a finite value, given the references that have one."""

    def __init__(self, root: Mapping[str, object]) -> None:
        self.alive: set[str] = set()
        self.asked: set[str] = set()  # references that were looked up and not known to have a value
        self._root = root

    def may_have(self, schema: object) -> bool:
        if not isinstance(schema, dict):
            return schema is not False
        parts = self._parts(schema)
        if parts is None:
            return False
        options = (listed(part, name) for part in parts for name in ("anyOf", "oneOf"))
        if not all(any(map(self.may_have, inner)) for inner in options if inner):
            return False
        kinds = [set(kind) if isinstance(kind, list) else {kind} for part in parts if (kind := part.get("type"))]
        kind = set[object].intersection(*kinds) if kinds else set[object]()
        if kind == {"object"}:
            names = {name for part in parts for name in listed(part, "required") if isinstance(name, str)}
            maps = [mapped(part, "properties") for part in parts]
            return all(self.may_have(properties[name]) for properties in maps for name in names if name in properties)
        return kind != {"array"} or all(map(self._may_be_array, parts))

    def _parts(self, schema: dict[str, object]) -> list[dict[str, object]] | None:
        """Return what holds at once: the schema, its `allOf`, what it refers to; None: one of these has no value."""
        parts, waiting, followed = list[dict[str, object]](), [schema], set[str]()
        while waiting:
            part = waiting.pop()
            parts.append(part)
            reference, inner = part.get("$ref"), listed(part, "allOf")
            if is_local(reference):
                name = str(reference)
                if name not in self.alive:
                    self.asked.add(name)
                    return None
                target = pointed(self._root, name)
                if isinstance(target, dict) and name not in followed and len(parts) < _MOST_PARTS and len(part) > 1:
                    followed.add(name)
                    waiting.append(target)
            if any(one is False for one in inner):
                return None
            waiting += [one for one in inner if isinstance(one, dict)]
        return parts

    def _may_be_array(self, part: dict[str, object]) -> bool:
        least = part.get("minItems")
        if not isinstance(least, int) or least < 1:
            return True
        first = listed(part, "prefixItems")
        if not all(map(self.may_have, first[:least])):
            return False
        return least <= len(first) or isinstance(part.get("items"), list) or self.may_have(part.get("items", True))
