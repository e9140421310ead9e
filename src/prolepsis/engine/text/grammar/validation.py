"""Checks whole answers by a client's schema; the work is bounded, and a thread should do it."""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend, validator_for
from referencing import Registry

from prolepsis.engine.text.grammar.patterns import matches
from prolepsis.engine.text.grammar.satisfiable import schemas

MOST_CHECKS = 100_000  # keywords that are looked at for one answer; a small schema may stand for a huge one
_SHOWN = 120

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class _TooLong(Exception):
    """The schema has more to check than is allowed."""


def broken(schema: object, answer: str) -> str | None:
    """Return how a finished answer breaks its schema, or why that cannot be said; None where it keeps to it."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return f"it is no JSON: {answer[:_SHOWN]!r}"
    try:
        error = next(_validator(schema)(schema, registry=Registry()).iter_errors(value), None)
    except Exception as fault:  # contained: a schema of a client may be anything, and what raises is not checked
        return f"it could not be checked: {type(fault).__name__} {str(fault)[:_SHOWN]}".rstrip()
    return None if error is None else f"{error.json_path}: {error.message[:_SHOWN]}"


def _validator(schema: Any) -> Any:
    """Return a class of validators, by the schema's draft, that check a bounded number of keywords, all together."""
    draft = validator_for(schema, default=Draft202012Validator)
    checked = count()

    def bounded(check: Keyword) -> Keyword:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if next(checked) >= MOST_CHECKS:
                raise _TooLong(f"more than {MOST_CHECKS} keywords")
            yield from check(validator, value, instance, schema) or ()

        return run

    keywords = {**draft.VALIDATORS, **_BOUNDED}
    if any("patternProperties" in part for part in schemas(schema)):  # which the library would match without a limit
        keywords["unevaluatedProperties"] = _unknown
    bounds = {name: bounded(check) for name, check in keywords.items()}
    return extend(draft, bounds)  # type: ignore[no-untyped-call]  # its stubs lack the types


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not matches(pattern, instance):
        yield ValidationError(f"{instance[:_SHOWN]!r} does not match {pattern[:_SHOWN]!r}")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for name in instance if validator.is_type(instance, "object") else ():
        for pattern, inner in patterns.items():
            if matches(pattern, name):
                yield from validator.descend(instance[name], inner, path=name, schema_path=pattern)


def _additional_properties(validator: Any, inner: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    for name in instance if validator.is_type(instance, "object") else ():
        if name in schema.get("properties", {}) or any(
            matches(pattern, name) for pattern in schema.get("patternProperties", ())
        ):
            continue
        if inner is False:
            yield ValidationError(f"{name[:_SHOWN]!r} is not listed")
        else:
            yield from validator.descend(instance[name], inner, path=name)


def _unknown(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    raise NotImplementedError("unevaluated properties beside patterns of names")


_BOUNDED: Mapping[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
}
"""Keywords that jsonschema would match without a limit of time."""
