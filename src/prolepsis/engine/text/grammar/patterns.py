"""Patterns of JSON schemas: which of them a grammar holds, and what a text is to the others; they are ECMA-262's."""

import re
from collections.abc import Iterable
from functools import lru_cache

import regex
from llguidance import LLMatcher, LLTokenizer

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.repetitions import check_repetitions

PATTERN_S = 0.1
"""Seconds for one pattern and one text."""
_PART = re.compile(r"\\u\{([0-9A-Fa-f]{1,8})\}|\\k<(\w+)>|(\[\^\])|\\(.)|(\[)\^?|([\]$])", re.DOTALL)
_SPACES = r"\s\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
_BYTES = LLTokenizer("byte")


@lru_cache(256)
def is_held(pattern: str) -> bool:
    """Return whether a grammar can hold `pattern`; one that no text fits is held."""
    try:
        check_repetitions(pattern, "pattern")
    except InvalidGrammar:
        return False
    source = LLMatcher.grammar_from_json_schema({"type": "string", "pattern": pattern})
    error = LLMatcher(_BYTES, source, log_level=0).get_error()
    return not error or "is empty" in error


def is_checkable(patterns: Iterable[str]) -> bool:
    """Return whether texts can be checked for all of these."""
    try:
        return all(map(_compiled, patterns))
    except (regex.error, ValueError, RecursionError):
        return False


def matches(pattern: str, text: str) -> bool:
    """Return whether `pattern` is found in `text`; raises `TimeoutError`, or `regex.error` for what is no pattern."""
    return _compiled(pattern).search(text, timeout=PATTERN_S) is not None


def is_found(pattern: str, name: str) -> bool:
    """Return whether a name matches; what is no pattern matches none. Raises `TimeoutError`."""
    try:
        return matches(pattern, name)
    except (regex.error, ValueError, RecursionError):
        return False


@lru_cache(256)
def _compiled(pattern: str) -> "regex.Pattern[str]":
    """Return a pattern as Python has it: `$` is the very end, and letters, digits and spaces are ECMA's."""
    inside = False

    def spelled(found: re.Match[str]) -> str:
        nonlocal inside
        code, name, anything, escaped, opens, other = found.groups()
        if code:
            return f"\\U{int(code, 16):08x}"
        if name:
            return f"(?P={name})"
        if anything:
            return "." if inside else r"[\s\S]"
        if escaped:
            spaces = {"s": _SPACES if inside else f"[{_SPACES}]", "S": r"\S" if inside else f"[^{_SPACES}]"}
            return spaces.get(escaped, found[0])
        if opens or other == "]":
            was, inside = inside, bool(opens)
            return found[0] if not (opens and was) else "\\["
        return "$" if inside else r"\Z"

    written = _PART.sub(spelled, pattern)
    return regex.compile(written, 0 if re.search(r"\\[pP]\{", pattern) else regex.ASCII)
