"""Reads llama.cpp's grammars (GBNF): rules over single characters."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.errors import InvalidGrammar

MOST_TIMES = 2000  # a larger least count is refused and a larger bound is none, as in llama.cpp
LAST_CHAR = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_ITEM = re.compile(
    r"""(?P<rule>[\w-]+)[ \t]*::= | (?P<name>[\w-]+) | "(?P<text>(?:\\.|[^"\\])*)" | \[(?P<chars>(?:\\.|[^\]\\])*)\]
    | \{\s*(?P<least>\d{1,9})\s*(?P<comma>,)?\s*(?P<most>\d{1,9})?\s*\} | (?P<token>!?<(?:\[\d{1,9}\]|[^\s<>"\[\]]+)>)
    | (?P<sign>[|().*+?]) | (?P<space>\s+|\#[^\r\n]*) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_CHAR = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))|(.)", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", **{char: char for char in '\\"[]-'}}
_ALLOWED_ESCAPES = r"\x41 \u0041 \U00000041 \t \r \n \\ \" \[ \] \-"
_COUNTS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@dataclass(frozen=True, slots=True, eq=False)
class Chars:
    """One character of some ranges, which are sorted and apart."""

    ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Token:
    """One token of the model, as it is named."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class RuleName:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Alternation:
    parts: tuple["Part", ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    part: "Part"
    least: int
    most: int | None


Part = Chars | Token | RuleName | Sequence | Alternation | Repeat


def read(text: str) -> Mapping[str, Part]:
    """Return the rules of a grammar by their names; raises `InvalidGrammar`."""
    reader = _Reader(text)
    rules = reader.rules()
    unknown = next((one for one in reader.named if one[0] not in rules), None)
    if unknown is not None:
        raise _wrong(text, unknown[1], f"names the rule {unknown[0][:64]!r}", "rules that the grammar defines")
    if "root" not in rules:
        raise _wrong(text, len(text), f"has the rules {', '.join(rules)[:200]}", "a rule named root")
    return rules


class _Reader:
    """Walks through the items of a grammar; a line end is white space, and a rule ends where the next one begins."""

    def __init__(self, text: str) -> None:
        self.named: list[tuple[str, int]] = []  # the rules that are named, and where
        self._text = text
        self._items = [found for found in _ITEM.finditer(text) if found["space"] is None]
        self._at = 0

    def rules(self) -> dict[str, Part]:
        rules = dict[str, Part]()
        while (name := self._next("rule")) is not None:
            rules[name] = self._choice()
        if self._at < len(self._items) or not rules:
            raise self._unexpected("a rule (name ::= ...)")
        return rules

    def _next(self, kind: str, *texts: str) -> str | None:
        item = self._items[self._at] if self._at < len(self._items) else None
        if item is None or item[kind] is None or (texts and item[kind] not in texts):
            return None
        self._at += 1
        return item[kind]

    def _choice(self) -> Part:
        parts = [self._sequence()]
        while self._next("sign", "|"):
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Alternation(tuple(parts))

    def _sequence(self) -> Part:
        parts = list[Part]()
        while (part := self._part()) is not None:
            while (counts := self._counts()) is not None:
                part = Repeat(part, *counts) if counts[1] != 0 else Sequence(())
            parts.append(part)
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _part(self) -> Part | None:
        start = self._items[self._at].start() if self._at < len(self._items) else 0
        if (name := self._next("name")) is not None:
            self.named.append((name, start))
            return RuleName(name)
        if (text := self._next("text")) is not None:
            return Sequence(tuple(Chars(((code, code),)) for code, _ in self._codes(text, start)))
        if (chars := self._next("chars")) is not None:
            return Chars(self._ranges(chars, start))
        if self._next("sign", "."):
            return Chars(((0, _SURROGATES[0] - 1), (_SURROGATES[1] + 1, LAST_CHAR)))
        if (token := self._next("token")) is None:
            return self._group()
        if token.startswith("!"):
            raise _wrong(self._text, start, f"has {token[:64]}, any token but one", "<token> and <[id]>")
        return Token(token)

    def _group(self) -> Part | None:
        if not self._next("sign", "("):
            return None
        inner = self._choice()
        if not self._next("sign", ")"):
            raise self._unexpected("a closing parenthesis")
        return inner

    def _counts(self) -> tuple[int, int | None] | None:
        start = self._at
        if (sign := self._next("sign", *_COUNTS)) is not None:
            return _COUNTS[sign]
        if (least := self._next("least")) is None:
            return None
        item = self._items[start]
        most = item["most"] if item["comma"] else least
        if int(least) > MOST_TIMES or (most and int(most) < int(least)):
            allowed = f"a least count up to {MOST_TIMES}, and no bound below it"
            raise _wrong(self._text, item.start(), f"repeats {item[0][:40]}", allowed)
        return int(least), int(most) if most and int(most) <= MOST_TIMES else None

    def _ranges(self, text: str, start: int) -> tuple[tuple[int, int], ...]:
        is_negated = text.startswith("^")
        codes, found = self._codes(text[is_negated:], start), list[tuple[int, int]]()
        while codes:
            (low, _), *codes = codes
            high = low
            if len(codes) > 1 and codes[0][1] == "-":
                (high, _), *codes = codes[1:]
            found.append((low, high))
        made = _apart([*found, _SURROGATES], within=True) if is_negated else _apart(found)
        if any(low > high for low, high in found) or not made or not found:
            raise _wrong(self._text, start, f"has [{text[:40]}]", "characters and ranges from a lower to a higher one")
        return made

    def _codes(self, text: str, start: int) -> list[tuple[int, str]]:
        """Return the characters of a literal's text, each with how it is written."""
        codes = list[tuple[int, str]]()
        for found in _CHAR.finditer(text):
            digits = found[1] or found[2] or found[3]
            char = _ESCAPES.get(found[4]) if found[4] else found[5]
            code = int(digits, 16) if digits else ord(char) if char else LAST_CHAR + 1
            if code > LAST_CHAR or _SURROGATES[0] <= code <= _SURROGATES[1]:
                raise _wrong(self._text, start, f"has {found[0][:16]}", _ALLOWED_ESCAPES)
            codes.append((code, found[0]))
        return codes

    def _unexpected(self, allowed: str) -> InvalidGrammar:
        is_over = self._at >= len(self._items)
        start = len(self._text) if is_over else self._items[self._at].start()
        return _wrong(self._text, start, "ends" if is_over else f"has {self._text[start : start + 20]!r}", allowed)


def _apart(ranges: list[tuple[int, int]], *, within: bool = False) -> tuple[tuple[int, int], ...]:
    joined = list[tuple[int, int]]()
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(high, joined[-1][1]))
        else:
            joined.append((low, high))
    if not within:
        return tuple(joined)
    edges = [-1, *(edge for one in joined for edge in one), LAST_CHAR + 1]
    return tuple((a + 1, b - 1) for a, b in zip(edges[::2], edges[1::2], strict=True) if a + 1 < b)


def _wrong(text: str, at: int, what: str, allowed: str) -> InvalidGrammar:
    line = text.count("\n", 0, at) + 1
    return InvalidGrammar(f"the grammar is no GBNF: line {line} {what}; allowed: {allowed}")
