"""Texts of GBNF by its rules alone: random ones, and whether a text is one, without a lexer."""

import random
from collections.abc import Mapping
from itertools import count

from prolepsis.engine.text.grammar.gbnf import Alternation, Chars, Part, Repeat, RuleName, Sequence

_LIKELY = 'ab01 \n\t".,:{}[]<>()=+-\\/_Zé猫'
_FAR = 10**6


class Texts:
    """Random texts of a grammar."""

    def __init__(self, rules: Mapping[str, Part]) -> None:
        self._rules = rules
        self._heights = dict.fromkeys(rules, _FAR)
        while (heights := {name: 1 + self._height(part) for name, part in rules.items()}) != self._heights:
            self._heights = {name: min(height, _FAR) for name, height in heights.items()}

    @property
    def are_there(self) -> bool:
        return self._heights["root"] < _FAR

    def draw(self, rng: random.Random, *, depth: int = 24) -> str:
        return self._text(RuleName("root"), rng, depth)

    def _height(self, part: Part) -> int:
        match part:
            case RuleName():
                return self._heights[part.name]
            case Repeat():
                return self._height(part.part) if part.least else 0
            case Alternation():
                return min(map(self._height, part.parts))
            case Sequence():
                return max(map(self._height, part.parts), default=0)
        return 0

    def _text(self, part: Part, rng: random.Random, depth: int) -> str:
        match part:
            case Chars():
                likely = [char for char in _LIKELY if _holds(part, char)]
                return (
                    rng.choice(likely) if likely and rng.random() < 0.7 else chr(rng.randint(*rng.choice(part.ranges)))
                )
            case RuleName():
                return self._text(self._rules[part.name], rng, depth - 1)
            case Alternation():
                lowest = min(map(self._height, part.parts))
                fits = [one for one in part.parts if self._height(one) <= max(depth, lowest)]
                return self._text(rng.choice(fits), rng, depth)
            case Repeat():
                may_more = self._height(part.part) <= depth
                most = part.least + 3 if part.most is None else part.most
                times = min(rng.randint(part.least, most), part.least + 5) if may_more else part.least
                return "".join(self._text(part.part, rng, depth - 1) for _ in range(times))
            case Sequence():
                return "".join(self._text(one, rng, depth) for one in part.parts)
        raise AssertionError(part)


def is_text(rules: Mapping[str, Part], text: str) -> bool:
    """Say whether a grammar has a text: the ends of each rule from each place grow until none is missing."""
    known: dict[tuple[str, int], set[int]] = {("root", 0): set()}
    grown = True

    def ends(part: Part, starts: set[int]) -> set[int]:
        match part:
            case Chars():
                return {start + 1 for start in starts if start < len(text) and _holds(part, text[start])}
            case RuleName():
                return set[int]().union(*(known.setdefault((part.name, start), set()) for start in starts))
            case Alternation():
                return set[int]().union(*(ends(one, starts) for one in part.parts))
            case Sequence():
                for one in part.parts:
                    starts = ends(one, starts)
                return starts
            case Repeat():
                found = set[int]() if part.least else set(starts)
                for times in count(1) if part.most is None else range(1, part.most + 1):
                    starts = ends(part.part, starts)
                    if times >= part.least:
                        starts = starts - found if part.most is None else starts
                        found |= starts
                    if not starts:
                        break
                return found
        raise AssertionError(part)

    while grown:
        before = {key: set(found) for key, found in known.items()}
        for name, start in before:
            known[name, start] |= ends(rules[name], {start})
        grown = before != known
    return len(text) in known["root", 0]


def _holds(part: Chars, char: str) -> bool:
    return any(low <= ord(char) <= high for low, high in part.ranges)
