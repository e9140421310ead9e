"""Bounds the counted repetitions inside of each other in a regular expression: each place of each is a state."""

import re

from prolepsis.core.errors import InvalidGrammar

MAX_NESTED = 10_000
"""Product of the counts of repetitions inside of each other."""
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d+)(?:,(\d*))?\}|[()]|.", re.DOTALL)
_IN_LARK = re.compile(r"/((?:[^/\\\n]|\\.)+)/")


def check_repetitions(pattern: str, what: str) -> None:
    """Raise `InvalidGrammar` where counted repetitions inside of each other are too many together."""
    found = _nested(pattern)
    if found > MAX_NESTED:
        raise InvalidGrammar(
            f"the {what} {_shown(pattern)} repeats inside of repetitions, {found} times in all; "
            f"allowed: at most {MAX_NESTED}"
        )


def check_lark_repetitions(lark: str) -> None:
    """Do so for each regular expression of a lark grammar."""
    for found in _IN_LARK.finditer(lark):
        check_repetitions(found[1], "lark's regular expression")


def _nested(pattern: str) -> int:
    """Return the largest product of counts of two or more repetitions inside of each other; 0: there are none."""
    worst, last = 0, 1
    groups, inside = list[int](), 1
    for part in _PART.finditer(pattern):
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


def _shown(pattern: str) -> str:
    return repr(pattern if len(pattern) <= 60 else f"{pattern[:57]}...")
