"""JSON schemas as llguidance takes them rightly: what it would take otherwise is rewritten, or refused by name.

It reads bounds as 64-bit floats and counts in 64-bit integers, so it would move large bounds and overflows its stack at
some; its own patterns of times are loose; it does not see that a schema has no finite value.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.patterns import PATTERNS, check_repetitions, is_found
from prolepsis.engine.text.grammar.refusals import shortened
from prolepsis.engine.text.grammar.satisfiable import DATA, MAPS, also, dead_references, is_local, loop, mapped, schemas
from prolepsis.engine.text.grammar.values import MOST_MATCHES, TooMany

GUIDANCE = "x-guidance"  # llguidance's own key in a schema, which sets how strictly it is kept
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_EXACT = 2**53
_LARGEST = 2**63 - 1
_MOST_MULTIPLE = 2**62
_DATA_PATH = re.compile(r"(^|\.)(const|enum)\b")
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\x7f]")  # characters that JSON can write as \u only

Schema = dict[str, object]
CoversNone = Callable[[str, Collection[str]], bool]
"""(pattern of names, names) -> whether the pattern matches no other name."""


def prepared(schema: Schema, *, lenient: bool, covers_none: CoversNone) -> Schema:
    """Return a schema of the same values, for llguidance; raises `InvalidGrammar`.

    `lenient`: a bound that cannot be kept is left out; otherwise it is refused by name.
    """
    _check_numbers(schema, lenient=lenient)
    if (name := loop(schema)) is not None:
        raise InvalidGrammar(f"the json_schema's {name[:200]} refers to itself; allowed: references with an end")
    dead = dead_references(schema)
    if "#" in dead:
        raise InvalidGrammar("the json_schema has no finite value; allowed: a schema that some value satisfies")
    made = _rewritten(schema, dead)
    assert isinstance(made, dict), "only references become something else"
    for part in schemas(made):
        if isinstance(given := part.get("pattern"), str):
            check_repetitions(given, "json_schema's pattern")
        for pattern in mapped(part, "patternProperties"):
            check_repetitions(pattern, "json_schema's patternProperties")
        _fold_patterns(part, covers_none)
        _check_count(part, lenient=lenient)
        _bound_multiples(part)
    return made


def allowed_escapes(schema: object) -> str:
    """Return the letters that may follow a backslash in answers. Without `u` a listed name has one spelling only."""
    return 'nrbtf\\"u' if any(_CONTROL.search(text) for text in _data_texts(schema)) else 'nrbtf\\"'


def _check_numbers(schema: Schema, *, lenient: bool) -> None:
    """Refuse numbers that would not be kept exactly, anywhere: a reference may point at any part of the document."""
    stack: list[tuple[str, object]] = [("", schema)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, dict):
            for name in [name for name in _BOUNDS if _is_number(value.get(name))]:
                _check_bound(value, name, path, lenient=lenient)
            stack += [(f"{path}.{name}" if path else name, part) for name, part in value.items()]
        elif isinstance(value, list):
            stack += [(f"{path}[{i}]", part) for i, part in enumerate(value)]
        elif _is_number(value) and _DATA_PATH.search(path) and not _is_exact(value):
            raise InvalidGrammar(f"the json_schema's {path[:200]} is {shortened(str(value), 40)}; allowed: {_RANGE}")


_RANGE = "finite numbers, and whole ones up to 2^53 or such that a 64-bit float of less than 2^63 holds them"


def _check_bound(schema: Schema, name: str, path: str, *, lenient: bool) -> None:
    value = schema[name]
    # next to an exclusive bound the next whole number has to be exact too
    if _is_exact(value) and (not name.startswith("exclusive") or abs(float(str(value))) < _EXACT):
        return
    if lenient:
        del schema[name]
        return
    where = f"{path}.{name}" if path else name
    raise InvalidGrammar(f"the json_schema's {where[:200]} is {shortened(str(value), 40)}; allowed: {_RANGE}")


def _bound_multiples(schema: Schema) -> None:
    """Bound numbers that are multiples, where nothing does: digits that must reach a multiple have no other end."""
    if "multipleOf" not in schema:
        return
    if not {"minimum", "exclusiveMinimum"} & schema.keys() and not _is_beyond(schema, "aximum", -1):
        schema["minimum"] = -_MOST_MULTIPLE
    if not {"maximum", "exclusiveMaximum"} & schema.keys() and not _is_beyond(schema, "inimum", 1):
        schema["maximum"] = _MOST_MULTIPLE


def _is_beyond(schema: Schema, end: str, sign: int) -> bool:
    """Return whether a bound whose name ends so leaves nothing within `_MOST_MULTIPLE` on its side."""
    bounds = [schema.get(f"m{end}"), schema.get(f"exclusiveM{end}")]
    return any(sign * float(str(value)) >= _MOST_MULTIPLE for value in bounds if _is_number(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_exact(value: object) -> bool:
    if isinstance(value, int):
        return abs(value) <= _EXACT or value == _LARGEST or (abs(value) < _LARGEST and int(float(value)) == value)
    return isinstance(value, float) and math.isfinite(value) and abs(value) < _LARGEST


def _rewritten(value: object, dead: Collection[str], *, in_map: bool = False) -> object:
    if isinstance(value, list):
        return [_rewritten(part, dead) for part in value]
    if not isinstance(value, dict):
        return value
    if in_map:
        return {name: _rewritten(part, dead) for name, part in value.items()}
    if is_local(value.get("$ref")) and value["$ref"] in dead:
        return False
    kept = {name: part for name, part in value.items() if name != GUIDANCE}
    made = {name: part if name in DATA else _rewritten(part, dead, in_map=name in MAPS) for name, part in kept.items()}
    pattern = PATTERNS.get(given) if isinstance(given := made.get("format"), str) else None
    if pattern is not None:  # a format of our own is written as the pattern that it is
        del made["format"]
        if "pattern" in made:
            also(made, {"pattern": pattern})
        else:
            made["pattern"] = pattern
    return made


def _fold_patterns(schema: Schema, covers_none: CoversNone) -> None:
    """Put patterns that match listed names only into these properties: behind a comma nothing would follow."""
    patterns, properties = schema.get("patternProperties"), schema.get("properties", {})
    required = schema.get("required", [])
    if not isinstance(patterns, dict) or not isinstance(properties, dict) or not isinstance(required, list):
        return
    names = dict.fromkeys([*properties, *(name for name in required if isinstance(name, str))])
    if len(names) * len(patterns) > MOST_MATCHES:
        raise TooMany
    for pattern, inner in list(patterns.items()):
        matched = [name for name in names if is_found(pattern, name)]
        if matched and covers_none(pattern, matched):
            del patterns[pattern]
            properties = properties | {name: {"allOf": [properties.get(name, True), inner]} for name in matched}
            schema["properties"] = properties


def _check_count(schema: Schema, *, lenient: bool) -> None:
    """Refuse a least number of names that the schema does not list: one name could come twice, and count twice."""
    least, required = schema.get("minProperties"), schema.get("required", [])
    if lenient or not isinstance(least, int) or not isinstance(required, list):
        return
    if least - len(set(map(str, required))) >= 2:
        raise InvalidGrammar(
            f"the json_schema's minProperties is {least}; allowed: one more than the {len(required)} in required"
        )


def _data_texts(value: object) -> Iterator[str]:
    """Yield the texts of `const` and `enum`, which answers may have to hold."""
    for schema in schemas(value):
        stack = [schema.get("const"), schema.get("enum")]
        while stack:
            part = stack.pop()
            if isinstance(part, str):
                yield part
            elif isinstance(part, list):
                stack += part
            elif isinstance(part, dict):
                stack += [*part.values(), *part]
