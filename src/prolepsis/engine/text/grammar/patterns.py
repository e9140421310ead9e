"""Patterns of JSON schemas: which of them a grammar holds, and what a text is to the others; they are ECMA-262's."""

import re
from collections.abc import Iterable
from functools import lru_cache

import regex
from llguidance import LLMatcher, LLTokenizer

from prolepsis.core.errors import InvalidGrammar
from prolepsis.engine.text.grammar.refusals import shortened

MAX_NESTED = 10_000  # product of the counts of repetitions inside of each other: each place of each is a state
_REPEATED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|[()]|.", re.DOTALL)
_IN_LARK = re.compile(r"/((?:[^/\\\n]|\\.)+)/")


def check_repetitions(pattern: str, what: str) -> None:
    """Raise `InvalidGrammar` where counted repetitions inside of each other are too many together."""
    num_nested = _nested(pattern)
    if num_nested > MAX_NESTED:
        raise InvalidGrammar(
            f"the {what} {shortened(pattern, 60)!r} repeats inside of repetitions, {num_nested} times in all; "
            f"allowed: at most {MAX_NESTED}"
        )


def check_lark_repetitions(lark: str) -> None:
    """Do so for each regular expression of a lark grammar."""
    for match in _IN_LARK.finditer(lark):
        check_repetitions(match[1], "lark's regular expression")


def _nested(pattern: str) -> int:
    """Return the largest product of counts of two or more repetitions inside of each other; 0: there are none."""
    worst, last = 0, 1
    groups, inside = list[int](), 1
    for part in _REPEATED.finditer(pattern):
        text = part[0]
        if text == "(":
            groups.append(inside)
            inside = last = 1
        elif text == ")":
            last, inside = inside, max(inside, groups.pop() if groups else 1)
        elif part[1] is not None:
            count = max(int(part[1][:9]), int((part[2] or "1")[:9]), 1)
            if last > 1:
                worst = max(worst, count * last)
            last *= count
            inside = max(inside, last)
        elif text not in "*+?":
            last = 1
    return worst


PATTERN_S = 0.1  # seconds for one pattern and one text
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

    def spelled(match: re.Match[str]) -> str:
        nonlocal inside
        code, name, anything, escaped, opens, other = match.groups()
        if code:
            return f"\\U{int(code, 16):08x}"
        if name:
            return f"(?P={name})"
        if anything:
            return "." if inside else r"[\s\S]"
        if escaped:
            spaces = {"s": _SPACES if inside else f"[{_SPACES}]", "S": r"\S" if inside else f"[^{_SPACES}]"}
            return spaces.get(escaped, match[0])
        if opens or other == "]":
            was, inside = inside, bool(opens)
            return match[0] if not (opens and was) else "\\["
        return "$" if inside else r"\Z"

    written = _PART.sub(spelled, pattern)
    return regex.compile(written, 0 if re.search(r"\\[pP]\{", pattern) else regex.ASCII)


_COMMON_YEAR = r"(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_LEAP_YEAR = r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_DAY = (
    r"(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    r"|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE = rf"(?:{_COMMON_YEAR}-{_DAY}|{_LEAP_YEAR}-02-29)"
_OFFSET = r"(?:Z|[+-](?:0[0-9]|1[0-3]):[0-5][0-9]|\+14:00)"
_TIME = rf"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?{_OFFSET}"
_COUNT = r"[0-9]{1,6}"
_CLOCK = rf"(?:{_COUNT}H(?:{_COUNT}M(?:{_COUNT}S)?)?|{_COUNT}M(?:{_COUNT}S)?|{_COUNT}S)"
_DAYS = rf"(?:{_COUNT}Y(?:{_COUNT}M(?:{_COUNT}D)?)?|{_COUNT}M(?:{_COUNT}D)?|{_COUNT}D)"

PATTERNS = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "duration": f"^P(?:{_DAYS}(?:T{_CLOCK})?|T{_CLOCK}|{_COUNT}W)$",
}
"""Patterns of formats that strict parsers agree with: Python, RFC 3339, ISO 8601, PostgreSQL, Java.

llguidance's own patterns allow a second 60, 30 February of no year, a year 0 and offsets that no place has.
"""
