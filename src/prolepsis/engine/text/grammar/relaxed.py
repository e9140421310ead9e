"""Schemas of clients without what no grammar holds: the whole answer is checked for it, or it is an annotation.

What can be written in other keywords is written so. What is left out makes the grammar wider.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from prolepsis.engine.text.grammar.closed import closed
from prolepsis.engine.text.grammar.patterns import PATTERNS, is_checkable, is_held
from prolepsis.engine.text.grammar.references import leads_nowhere, rooted
from prolepsis.engine.text.grammar.satisfiable import also, listed, mapped, placed, schemas

Schema = dict[str, object]
FORMATS = frozenset({*PATTERNS, "email", "hostname", "ipv4", "ipv6", "uri", "uuid"})
"""Those that are kept; any other is an annotation, which JSON Schema 2020-12 lets a format be."""
CHECKED = (
    *("not", "if", "contains", "propertyNames", "uniqueItems", "minProperties", "maxProperties", "oneOf"),
    *("pattern", "patternProperties", "unevaluatedProperties"),
)
"""Keywords of which only a whole answer shows whether it keeps them."""
_UNKNOWN = ("unevaluatedItems", "$dynamicRef", "$recursiveRef")  # keywords that are not even checked
_WITHOUT_EFFECT = ("then", "else", "minContains", "maxContains", "$dynamicAnchor", "$recursiveAnchor")
"""Keywords that have an effect only with one that is left out."""
_WORDS = ("title", "description", "$comment", "examples", "markdownDescription")
"""Keywords for readers; the grammar's size does not count them."""
_DEPENDENT = ("dependencies", "dependentRequired", "dependentSchemas")
AT_THE_END = "checked at the end"
_MOST_NAMED = 8
_LARGEST = 2**63 - 1
_NEAR = 2**62
_MAX_ONE_OF = 8
_MAX_DEPENDENT = 6  # names that others depend on in one object: each doubles what the grammar has to follow


@dataclass(frozen=True, slots=True)
class RelaxedSchema:
    """A schema that admits every value of another."""

    schema: Schema
    annotations: tuple[str, ...] = ()  # places of formats that are not kept
    checked: tuple[str, ...] = ()  # places of keywords for which the whole answer is checked
    unknown: tuple[str, ...] = ()
    """Places of what can be neither held nor checked, such as references to other documents."""


def held_form(schema: Mapping[str, object], *, open_objects: bool = False) -> RelaxedSchema:
    """Return a client's schema as a grammar holds it; closed, unless `open_objects`."""
    return relaxed(rooted(schema) if open_objects else closed(schema))


def named(what: str, places: Sequence[str]) -> list[str]:
    more = " and more" if len(places) > _MOST_NAMED else ""
    return [f"{what}: {', '.join(places[:_MOST_NAMED])}{more}"] if places else []


def relaxed(schema: Mapping[str, object]) -> RelaxedSchema:
    """Return `schema` without what no grammar holds, and what that is."""
    made = copy.deepcopy(dict(schema))
    annotations, checked, unknown = list[str](), list[str](), list[str]()
    has_patterns = any("patternProperties" in part for part in schemas(made))
    not_checked = (*_UNKNOWN, *(["unevaluatedProperties"] if has_patterns else []))
    for place, part in list(placed(made)):
        where = f"{place}." if place else ""
        for name in [name for name in _WORDS if isinstance(part.get(name), str | list)]:
            del part[name]
        given = part.get("format")
        if isinstance(given, str) and given not in FORMATS:
            del part["format"]
            annotations.append(f"{where}format {given}")
        _bring_bounds_near(part)
        _spell_dependencies(part)
        _spell_not_required(part)
        _spell_one_of_required(part)
        if leads_nowhere(schema, part.get("$ref")):
            unknown.append(f"{where}$ref {part.pop('$ref')}")
        for name in [name for name in part if name in not_checked or not is_checkable(_patterns(part, name))]:
            _left_out(part, name)
            unknown.append(where + name)
        for name in (*CHECKED, *_DEPENDENT):
            if name in part and _RELAX.get(name, _left_out)(part, name):
                checked.append(where + name)
        for name in _WITHOUT_EFFECT:
            part.pop(name, None)
    return RelaxedSchema(made, tuple(annotations), tuple(checked), tuple(unknown))


def _bring_bounds_near(schema: Schema) -> None:
    """Replace bounds past 64 bits, which grammars cannot count to, by one within."""
    for name, exclusive, sign in (("maximum", "exclusiveMaximum", 1), ("minimum", "exclusiveMinimum", -1)):
        for given in (name, exclusive):
            value = schema.get(given)
            if isinstance(value, int | float) and not isinstance(value, bool) and sign * value > _LARGEST:
                del schema[given]
                schema.setdefault(name, sign * _NEAR)


def _spell_dependencies(schema: Schema) -> None:
    """Write each dependency as a choice: the name is missing, or what depends on it holds too."""
    found = [one for keyword in _DEPENDENT for one in mapped(schema, keyword).items()]
    if not 1 <= len(found) <= _MAX_DEPENDENT:
        return
    for keyword in _DEPENDENT:
        schema.pop(keyword, None)
    for name, then in found:
        names = [one for one in then if isinstance(one, str)] if isinstance(then, list) else []
        held: Schema = {"required": [name, *names]}
        if not isinstance(then, list):
            held["allOf"] = [then]
        also(schema, {"anyOf": [{"properties": {name: False}}, held]})


def _spell_not_required(schema: Schema) -> None:
    """Write the names that may not be there together as a choice of the one that is missing."""
    given = mapped(schema, "not")
    names = listed(given, "required") if given.keys() == {"required"} else []
    if names and "properties" in schema:
        del schema["not"]
        also(schema, {"anyOf": [{"properties": {str(name): False}} for name in names]})


def _spell_one_of_required(schema: Schema) -> None:
    """Write `oneOf` of required names as a choice in which every other one lacks a name."""
    options = listed(schema, "oneOf")
    if not 2 <= len(options) <= _MAX_ONE_OF:
        return
    given = [one["required"] for one in options if isinstance(one, dict) and one.keys() == {"required"}]
    sets = [set(map(str, names)) for names in given if isinstance(names, list)]
    if len(sets) < len(options):
        return
    del schema["oneOf"]
    choices = list[Schema]()
    for names in sets:
        missing = [sorted(others - names) for others in sets if others is not names]
        lacks = [{"anyOf": [{"properties": {name: False}} for name in one]} if one else False for one in missing]
        choices.append({"required": sorted(names), "allOf": lacks})
    also(schema, {"anyOf": choices})


def _left_out(schema: Schema, name: str) -> bool:
    del schema[name]
    if name == "patternProperties":  # all that is left over would be any other name
        schema.pop("additionalProperties", None)
    return True


def _patterns(schema: Schema, name: str) -> list[str]:
    found = [schema[name]] if name == "pattern" else mapped(schema, name) if name == "patternProperties" else ()
    return [one for one in found if isinstance(one, str)]


def _not_held(schema: Schema, name: str) -> bool:
    return not all(map(is_held, _patterns(schema, name))) and _left_out(schema, name)


def _any_of(schema: Schema, name: str) -> bool:
    """Allow several of the schemas; those that cannot overlap are the same so."""
    options = schema.pop(name)
    if "anyOf" in schema:
        also(schema, {"anyOf": options})
    else:
        schema["anyOf"] = options
    return isinstance(options, list) and len(options) > 1


def _not_unique(schema: Schema, name: str) -> bool:
    """Leave it out; of a few listed values there are no more items than values."""
    if schema.pop(name) is not True:
        return False
    values, most = listed(mapped(schema, "items"), "enum"), schema.get("maxItems")
    if values and "prefixItems" not in schema:
        schema["maxItems"] = min(len(values), most) if isinstance(most, int) else len(values)
    return most != 1


def _uncounted(schema: Schema, name: str) -> bool:
    """Leave a count out where it cannot be kept: names that the schema lists and does not require are not counted."""
    if set(mapped(schema, "properties")) <= set(map(str, listed(schema, "required"))):
        return False
    del schema[name]
    return True


_RELAX: Mapping[str, Callable[[Schema, str], bool]] = {
    "oneOf": _any_of,
    "uniqueItems": _not_unique,
    "minProperties": _uncounted,
    "maxProperties": _uncounted,
    "pattern": _not_held,
    "patternProperties": _not_held,
}
"""What is done about a keyword; whether the answer is checked then."""
