"""JSON schemas over engines that drop what they do not know: refused where that is known, else answers are checked.

llama.cpp turns a schema into a grammar of its own. It leaves out keywords, and patterns with classes such as \\d,
without a word, so that an answer may break the schema. What is checked here is another's text by a client's schema:
the work is bounded, and a thread does it.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import regex
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

MOST_CHECKS = 100_000
"""Keywords that are looked at for one answer; a small schema may stand for a huge one."""
PATTERN_S = 0.1
"""Seconds for one pattern and one text."""
_DROPPED = re.compile(r"\\[dDwWsSbBpPkuxcv0-9]|\(\?")
"""Parts of patterns that llama.cpp does not hold: classes, boundaries, references, groups that look around."""
_NOT_HELD = ("patternProperties", "unevaluatedProperties", "unevaluatedItems")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names of the client's."""
_VALUES = ("const", "enum", "default", "examples")
_SHOWN = 120

Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]


class _TooLong(Exception):
    """The schema has more to check than is allowed."""


def not_held(schema: object) -> str | None:
    """Return what of a schema llama.cpp is known to drop, with what is allowed; None if nothing of it is found."""
    todo = [schema]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += part
        if not isinstance(part, dict):
            continue
        todo += [value for name, value in part.items() if name not in (*_VALUES, *_NAMED)]
        todo += [one for name in _NAMED if isinstance(part.get(name), dict) for one in part[name].values()]
        pattern = part.get("pattern")
        if isinstance(pattern, str) and (found := _DROPPED.search(pattern)):
            return f"pattern {pattern[:_SHOWN]!r} with {found[0]}; allowed: written out, such as [0-9] for \\d"
        for name in _NOT_HELD:
            if name in part and isinstance(part[name], dict | bool):
                return f"{name}; allowed: properties and additionalProperties"
    return None


def broken(schema: object, answer: str) -> str | None:
    """Return how a finished answer breaks its schema, or why that cannot be said; None where it keeps to it."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        return f"it is no JSON: {answer[:_SHOWN]!r}"
    try:
        error = next(_validator()(schema, registry=Registry()).iter_errors(value), None)
    except Exception as fault:  # contained: a schema of a client may be anything, and what raises is not checked
        return f"it could not be checked: {type(fault).__name__} {str(fault)[:_SHOWN]}".rstrip()
    return None if error is None else f"{error.json_path}: {error.message[:_SHOWN]}"


def _validator() -> Any:
    """Return a class of validators whose instances check a bounded number of keywords, all of them together."""
    checked = count()

    def bounded(check: Keyword) -> Keyword:
        def run(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
            if next(checked) >= MOST_CHECKS:
                raise _TooLong(f"more than {MOST_CHECKS} keywords")
            yield from check(validator, value, instance, schema) or ()

        return run

    keywords = {**Draft202012Validator.VALIDATORS, "pattern": _pattern}
    bounds = {name: bounded(check) for name, check in keywords.items()}
    return extend(Draft202012Validator, bounds)  # type: ignore[no-untyped-call]  # its stubs lack the types


def _pattern(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if validator.is_type(instance, "string") and not regex.search(pattern, instance, timeout=PATTERN_S):
        yield ValidationError(f"{instance[:_SHOWN]!r} does not match {pattern[:_SHOWN]!r}")
