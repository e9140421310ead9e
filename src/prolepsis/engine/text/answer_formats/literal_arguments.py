"""Arguments as literals of another notation than JSON: Python's keywords and values, Gemma's objects."""

import ast
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.text.answer_formats.json_arguments import object_schema
from prolepsis.engine.text.answer_formats.schemas import (
    KEY_PATTERN,
    Function,
    Schema,
    checked_choices,
    choices_of,
    length_bound,
    named_properties,
    resolved,
    takes_others,
    values_of,
)
from prolepsis.engine.text.answer_formats.tool_format import lark_quoted, lark_sequence, pattern_of


@dataclass(frozen=True, slots=True)
class Notation:
    """How values are written."""

    true: str
    false: str
    null: str
    quotes: tuple[str, ...]  # marks around a text; the first is the one that is written
    escapes: bool  # texts hold escapes, as Python's do; otherwise they are as they are up to the next mark
    quoted_keys: bool  # keys of objects inside of arguments are texts
    separator: str  # text between two values of a list or object
    colon: str
    is_sorted: bool = False  # keys come in the order of their names

    def write(self, value: object) -> str:
        if value is None or isinstance(value, bool):
            return self.null if value is None else self.true if value else self.false
        if isinstance(value, str):
            return repr(value) if self.escapes else f"{self.quotes[0]}{value}{self.quotes[0]}"
        if isinstance(value, list):
            return "[" + self.separator.join(self.write(item) for item in value) + "]"
        if isinstance(value, dict):
            pairs = (
                f"{self.write(key) if self.quoted_keys else key}{self.colon}{self.write(value[key])}"
                for key in self.keys(value)
            )
            return "{" + self.separator.join(pairs) + "}"
        return json.dumps(value)

    def holds(self, value: object) -> bool:
        """Return whether a value can be written: without escapes, no text may hold the mark that ends it."""
        if isinstance(value, list | dict):
            return all(self.holds(item) for item in (value.values() if isinstance(value, dict) else value))
        return self.escapes or not isinstance(value, str) or self.quotes[0] not in value

    def keys(self, value: Mapping[str, object]) -> list[str]:
        return sorted(value) if self.is_sorted else list(value)


PYTHON = Notation("True", "False", "None", ("'", '"'), escapes=True, quoted_keys=True, separator=", ", colon=": ")
GEMMA = Notation(
    "true", "false", "null", ('<|"|>',), escapes=False, quoted_keys=False, separator=",", colon=":", is_sorted=True
)


@dataclass(frozen=True, slots=True)
class LiteralArguments:
    """Arguments by name, such as `city='Rome', days=2`."""

    notation: Notation
    equals: str  # text between an argument's name and its value

    @property
    def texts(self) -> tuple[str, ...]:
        return self.notation.quotes if len(self.notation.quotes[0]) > 1 else ()

    def write(self, arguments: Mapping[str, object]) -> str:
        notation = self.notation
        return notation.separator.join(
            f"{key}{self.equals}{notation.write(arguments[key])}" for key in notation.keys(arguments)
        )

    def grammar(self, function: Function, rule: str) -> tuple[str, list[str]]:
        schema = object_schema(function)
        rules = LiteralRules(self.notation, schema, rule)
        root = resolved(schema, schema)
        return rules.pairs(root, self.equals, quoted=False, of=function.name), rules.made

    def reader(self, function: Function, tail: str) -> "LiteralReader":
        return LiteralReader(self.notation, self.equals, tail)


class LiteralRules:
    """Rules of values by their schemas. What a notation cannot bound, such as a text's pattern, stays open."""

    def __init__(self, notation: Notation, root: Schema, prefix: str) -> None:
        self.made: list[str] = []
        self._notation = notation
        self._root = root
        self._prefix = prefix
        self._num_names = 0
        self._by_reference: dict[str, str] = {}
        self._any: str | None = None
        self._texts: dict[str, str] = {}  # rules of texts by their bounds

    def value(self, schema: object) -> str:
        if not isinstance(schema, dict) or not schema:
            return self._any_value()
        reference = schema.get("$ref")
        if isinstance(reference, str):
            known = self._by_reference.get(reference)
            if known is None:
                known = self._by_reference[reference] = self._name()
                target = resolved({"$ref": reference}, self._root)
                self.made.append(f"{known}: {self.value(target)}")
            return known
        if (values := values_of(schema)) is not None:
            written = [self._notation.write(value) for value in values if self._notation.holds(value)]
            return "(" + " | ".join(map(lark_quoted, checked_choices(written, values))) + ")"
        if choices := choices_of(schema):
            return "(" + " | ".join(self.value(choice) for choice in choices) + ")"
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return "(" + " | ".join(self.value({**schema, "type": kind}) for kind in kinds) + ")"
        return self._of_kind(kinds, schema)

    def _of_kind(self, kind: object, schema: Schema) -> str:
        notation = self._notation
        words = {
            "boolean": f"({lark_quoted(notation.true)} | {lark_quoted(notation.false)})",
            "null": lark_quoted(notation.null),
        }
        if kind == "string":
            return self.text(length_bound(schema))
        if kind in ("integer", "number"):
            return "%json " + json.dumps({**schema, "x-guidance": {**JSON_STYLE, "lenient": True}})
        if kind == "array":
            item = self._rule(self.value(schema.get("items")))
            least, most = schema.get("minItems", 0), schema.get("maxItems")
            if most == 0:
                return '"[]"'
            least = least if isinstance(least, int) else 0
            last = most - 1 if isinstance(most, int) else ""
            rest = f"({lark_quoted(self._notation.separator)} {item}){{{max(least - 1, 0)},{last}}}"
            return f'("[" {item} {rest} "]")' if least else f'("[" ({item} {rest})? "]")'
        if kind == "object":
            inner = self.pairs(schema, notation.colon, quoted=notation.quoted_keys, of="")
            return f'("{{" {inner} "}}")'
        return words[kind] if isinstance(kind, str) and kind in words else self._any_value()

    def pairs(self, schema: Schema, equals: str, *, quoted: bool, of: str) -> str:
        """Return the items of an object's pairs, without its braces."""
        notation = self._notation
        kept = None if quoted else (equals, notation.separator)
        properties, required = named_properties(schema, of, kept)
        between = lark_quoted(notation.separator)
        if not properties:
            if not takes_others(schema):
                return ""
            key = self.text() if quoted else "/[A-Za-z_][A-Za-z0-9_]*/"
            pair = self._rule(f"{key} {lark_quoted(equals)} {self.value(schema.get('additionalProperties'))}")
            return f"({pair} ({between} {pair})*)?"
        items = list[str]()
        for key in notation.keys(properties):
            written = notation.write(key) if quoted else key
            pair = self._rule(f"{lark_quoted(written + equals)} {self.value(properties[key])}")
            items.append(pair if key in required else f"{pair}?")
        whole, rules = lark_sequence(items, between, self._name())
        self.made += rules
        return whole

    def text(self, bound: str = "*") -> str:
        """Return an item for a text; `bound` is how often a regex repeats a character of it."""
        if bound not in self._texts:
            if not self._notation.escapes:
                mark = lark_quoted(self._notation.quotes[0])
                inside = self._rule(f"/(.|\\n){bound}/ {mark}", "[lazy]")
                self._texts[bound] = self._rule(f"{mark} {inside}")
            else:
                escape = r"\\['\"\\nrt]|\\x[0-9a-f]{2}"
                each = (rf"/{q}([^{q}\\\x00-\x1f\x7f]|{escape}){bound}{q}/" for q in "'\"")
                self._texts[bound] = self._rule(" | ".join(each))
        return self._texts[bound]

    def _any_value(self) -> str:
        if self._any is None:
            self._any = self._name()
            kinds = ("string", "number", "boolean", "null")
            key = self.text() if self._notation.quoted_keys else "/[A-Za-z_][A-Za-z0-9_]*/"
            between = lark_quoted(self._notation.separator)
            pair = f"{key} {lark_quoted(self._notation.colon)} {self._any}"
            simple = " | ".join(self._of_kind(kind, {"type": kind}) for kind in kinds)
            array = f'"[" ({self._any} ({between} {self._any})*)? "]"'
            entries = f'"{{" ({pair} ({between} {pair})*)? "}}"'
            self.made.append(f"{self._any}: {simple} | {array} | {entries}")
        return self._any

    def _rule(self, body: str, attributes: str = "") -> str:
        name = self._name()
        self.made.append(f"{name}{attributes}: {body}")
        return name

    def _name(self) -> str:
        self._num_names += 1
        return f"{self._prefix}_{self._num_names}"


def python_value(text: str) -> object:
    """Return the value that `text` is in Python's notation; what is none is that text."""
    parser = _Parser(PYTHON, f"{text.strip()}\n")
    try:
        value = parser.value()
    except (_Incomplete, ValueError, SyntaxError, RecursionError):
        return text
    return value if parser.at == len(text.strip()) else text


class LiteralReader:
    """Reads a call's arguments once all of them are there."""

    def __init__(self, notation: Notation, equals: str, tail: str) -> None:
        self.ended = False
        self._notation = notation
        self._equals = re.compile(pattern_of(equals))
        self._tail = re.compile(pattern_of(tail))

    def read(self, text: str) -> tuple[str, int]:
        parser = _Parser(self._notation, text)
        try:
            values = parser.pairs(self._equals, self._tail)
        except (_Incomplete, ValueError, SyntaxError, RecursionError):
            return "", 0
        self.ended = True
        return json.dumps(values, ensure_ascii=False), parser.at


class _Incomplete(Exception):
    """The text ends, or continues differently, before the value ends."""


_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?=[^\d.eE+-])")


class _Parser:
    def __init__(self, notation: Notation, text: str) -> None:
        self.at = 0
        self._notation = notation
        self._text = text

    def pairs(self, equals: re.Pattern[str], end: re.Pattern[str], *, quoted: bool = False) -> dict[str, object]:
        """Read pairs up to what matches `end`, which stays."""
        values: dict[str, object] = {}
        while not end.match(self._text, self.at):
            if values:
                self._take(re.compile(pattern_of(self._notation.separator)))
            key = str(self.value()) if quoted else self._take(re.compile(rf"{KEY_PATTERN}?(?={equals.pattern})"))
            self._take(equals)
            values[key] = self.value()
        return values

    def value(self) -> object:
        notation, text = self._notation, self._text
        for word, meaning in ((notation.true, True), (notation.false, False), (notation.null, None)):
            if text.startswith(word, self.at):
                self.at += len(word)
                return meaning
        for quote in notation.quotes:
            if text.startswith(quote, self.at):
                if not self._notation.escapes:
                    start = self.at + len(quote)
                    end = self._text.find(quote, start)
                    if end < 0:
                        raise _Incomplete
                    self.at = end + len(quote)
                    return self._text[start:end]
                match = re.compile(rf"{quote}(?:[^{quote}\\\n]|\\.)*{quote}").match(self._text, self.at)
                if match is None:
                    raise _Incomplete
                self.at = match.end()
                return str(ast.literal_eval(match[0]))
        if text.startswith("[", self.at):
            return self._list()
        if text.startswith("{", self.at):
            self.at += 1
            colon, brace = re.compile(pattern_of(notation.colon)), re.compile(r"\s*\}")
            values = self.pairs(colon, brace, quoted=notation.quoted_keys)
            self._take(brace)
            return values
        return json.loads(self._take(_NUMBER))

    def _list(self) -> list[object]:
        self.at += 1
        values, end = list[object](), re.compile(r"\s*\]")
        while not end.match(self._text, self.at):
            if values:
                self._take(re.compile(pattern_of(self._notation.separator)))
            values.append(self.value())
        self._take(end)
        return values

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self.at)
        if match is None:
            raise _Incomplete
        self.at = match.end()
        return match[0]
