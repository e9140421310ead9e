"""JSON schemas over engines that drop what they do not know: refused where that is known, else answers are checked.

llama.cpp turns a schema into a grammar of its own. It leaves out keywords, and patterns with classes such as \\d,
without a word, so that an answer may break the schema.
"""

import re

_DROPPED = re.compile(r"\\[dDwWsSbBpPkuxcv0-9]|\(\?")
"""Parts of patterns that llama.cpp does not hold: classes, boundaries, references, groups that look around."""
_NOT_HELD = ("patternProperties", "unevaluatedProperties", "unevaluatedItems")
_NAMED = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names of the client's."""
_VALUES = ("const", "enum", "default", "examples")
_SHOWN = 120


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
