"""Arguments as one marked text each, such as `<parameter=city>Rome</parameter>`."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.text.answer_formats.json_arguments import object_schema
from prolepsis.engine.text.answer_formats.literal_arguments import PYTHON, LiteralRules, python_value
from prolepsis.engine.text.answer_formats.schemas import (
    KEY_PATTERN,
    Function,
    Schema,
    checked_choices,
    fits,
    kind_of,
    kinds_of,
    length_bound,
    listed,
    named_properties,
    resolved,
    takes_others,
    values_of,
)
from prolepsis.engine.text.answer_formats.tool_format import lark_quoted, lark_sequence, pattern_of

KEY, VALUE, IS_STRING, TYPE = "⟨key⟩", "⟨value⟩", "⟨is string⟩", "⟨type⟩"
_PLACE = re.compile(f"({KEY}|{VALUE}|{IS_STRING}|{TYPE})")
_CDATA, _CDATA_END, _MARKUP = "<![CDATA[", "]]>", re.compile("[<>&\n]")


@dataclass(frozen=True, slots=True)
class TaggedArguments:
    """Texts stand as they are, all else as JSON. Without a sign for texts, the schema decides."""

    parameter: str  # one argument with its places
    between: str = ""
    is_cdata: bool = False  # texts with markup stand in a CDATA section
    python_too: bool = False
    """Other values may also stand as Python writes them: templates of the family do that to calls of a conversation."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (*_PLACE.split(self.parameter)[::2], self.between)

    @property
    def opening(self) -> str:
        return self.parameter.partition(VALUE)[0]

    @property
    def close(self) -> str:
        return self.parameter.partition(VALUE)[2]

    @property
    def tells_texts(self) -> bool:
        return IS_STRING in self.parameter or TYPE in self.parameter

    def write(self, arguments: Mapping[str, object]) -> str:
        written = list[str]()
        for key, value in arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if self.is_cdata and isinstance(value, str) and _MARKUP.search(text):
                text = f"{_CDATA}{text}{_CDATA_END}"
            kind, is_string = kind_of(value).replace("integer", "number"), str(isinstance(value, str)).lower()
            written.append(_placed(self.parameter, {KEY: key, VALUE: text, IS_STRING: is_string, TYPE: kind}))
        return self.between.join(written)

    def grammar(self, function: Function, rule: str) -> tuple[str, list[str]]:
        schema = _root(function)
        properties, required = named_properties(schema, function.name)
        if not properties:
            return self._any(rule) if takes_others(schema) else ("", [])
        rules, names = list[str](), list[str]()
        for number, (key, part) in enumerate(properties.items()):
            name = f"{rule}_{number}"
            rules += self._parameter(name, key, part, schema)
            names.append(name if key in required else f"{name}?")
        whole, more = lark_sequence(names, lark_quoted(self.between), rule)
        return whole, rules + more

    def _any(self, rule: str) -> tuple[str, list[str]]:
        before, after = self.opening.split(KEY)
        key = f"{lark_quoted(before)} /[A-Za-z_][A-Za-z0-9_.-]*/ {lark_quoted(_PLACE.sub('string', after))}"
        if IS_STRING in after:
            key = key.replace('\\"string\\"', '\\"true\\"')
        any_rule = f"{rule}_any: {key} {rule}_value"
        value = f"{rule}_value[lazy]: /(.|\\n)*/ {lark_quoted(self.close)}"
        rest = f"({lark_quoted(self.between)} {rule}_any)*" if self.between else f"{rule}_any*"
        return f"({rule}_any {rest})?", [any_rule, value]

    def _parameter(self, name: str, key: str, part: Schema, root: Schema) -> list[str]:
        part = resolved(part, root)
        kinds = kinds_of(part, root)
        text, values = lark_quoted(self.close), []
        rules = list[str]()
        if "string" in kinds:
            opening = self._open(key, "true", "string")
            rules.append(f"{name}_text{_string(part, self.close)}")
            values.append(f"{opening} {name}_text")
            if self.is_cdata:
                rules.append(f"{name}_quoted{_string(part, _CDATA_END + self.close)}")
                values.append(f"{opening} {lark_quoted(_CDATA)} {name}_quoted")
        others = kinds - {"string"}
        if others and ("string" not in kinds or self.tells_texts):
            embedded = json.dumps(_without_strings(part, root, others), ensure_ascii=False)
            named = (name for name in ("object", "array", "boolean", "null") if others == {name})
            opening = self._open(key, "false", next(named, "number"))
            values.append(f"{opening} %json {embedded} {text}")
            if self.python_too and others & _OTHERWISE_IN_PYTHON:
                python = LiteralRules(PYTHON, root, f"{name}_python")
                values.append(f"{opening} {python.value(_only(part, others & _OTHERWISE_IN_PYTHON))} {text}")
                rules += python.made
        return [f"{name}: {' | '.join(checked_choices(values, ()))}", *rules]

    def _open(self, key: str, is_string: str, kind: str) -> str:
        return lark_quoted(_placed(self.opening, {KEY: key, IS_STRING: is_string, TYPE: kind}))

    def reader(self, function: Function, tail: str) -> "TaggedReader":
        return TaggedReader(self, function, tail)


class TaggedReader:
    """Turns marked arguments into a JSON object as they come; texts are passed on piece by piece."""

    def __init__(self, arguments: TaggedArguments, function: Function, tail: str) -> None:
        self.ended = False
        self._opening = re.compile(_pattern(arguments.opening))
        self._tail = re.compile(r"\s*" + pattern_of(tail))
        self._between = re.compile(pattern_of(arguments.between))
        self._close = arguments.close
        self._root = _root(function)
        self._tells_texts = arguments.tells_texts
        self._python_too = arguments.python_too
        self._is_cdata = arguments.is_cdata
        self._key: str | None = None
        self._is_text = False
        self._has_begun = False  # a part of the present text has been read
        self._num_read = 0

    def read(self, text: str) -> tuple[str, int]:
        done, written = 0, ""
        while not self.ended:
            step = self._parameter(text[done:]) if self._key is None else self._value(text[done:])
            written += step[0]
            done += step[1]
            if not step[1] and not self.ended:
                break
        return written, done

    def _parameter(self, text: str) -> tuple[str, int]:
        """Read up to an argument's value, or the end."""
        start = self._between.match(text) if self._num_read else None
        match = self._opening.match(text, start.end() if start else 0)
        if match is not None:
            self._key = match["key"]
            if self._tells_texts:
                self._is_text = match["kind"] in ("true", "string")
            else:
                self._is_text = kinds_of(self._schema_of(self._key), self._root) == {"string"}
            self._has_begun = False
            lead = ("{" if not self._num_read else ", ") + f"{json.dumps(self._key, ensure_ascii=False)}: "
            self._num_read += 1
            return lead + ('"' if self._is_text else ""), match.end()
        if self._tail.match(text) is not None:
            self.ended = True
            return ("}" if self._num_read else "{}"), 0
        return "", 0

    def _schema_of(self, key: str) -> Schema:
        properties = self._root.get("properties")
        part = properties.get(key) if isinstance(properties, dict) else None
        return resolved(part, self._root) if isinstance(part, dict) else {}

    def _value(self, text: str) -> tuple[str, int]:
        quoted = self._is_cdata and not self._has_begun and text.startswith(_CDATA[: len(text)])
        close = _CDATA_END + self._close if quoted else self._close
        end = text.find(close)
        if end >= 0:
            value, done = text[:end], end + len(close)
            value = value.removeprefix(_CDATA) if quoted else value
            key, self._key = self._key, None
            if self._is_text:
                return f'{_inside(value)}"', done
            return json.dumps(value, ensure_ascii=False) if quoted else self._as_json(key or "", value), done
        if quoted or not self._is_text:
            return "", 0
        kept = next(
            (n for n in range(min(len(self._close) - 1, len(text)), 0, -1) if self._close.startswith(text[-n:])), 0
        )
        self._has_begun |= kept < len(text)
        return _inside(text[: len(text) - kept]), len(text) - kept

    def _as_json(self, key: str, text: str) -> str:
        """Return a value that is not certainly a text as JSON, as far as the schema allows that."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = python_value(text) if self._python_too else text
        if not self._tells_texts and not fits(value, self._schema_of(key), self._root):
            value = text
        return json.dumps(value, ensure_ascii=False)


def _placed(text: str, places: Mapping[str, str]) -> str:
    return _PLACE.sub(lambda match: places[match[1]], text)


def _root(function: Function) -> Schema:
    schema = object_schema(function)
    return resolved(schema, schema)


def _inside(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _pattern(opening: str) -> str:
    places = {KEY: rf"(?P<key>{KEY_PATTERN})", IS_STRING: r"(?P<kind>\w+)", TYPE: r"(?P<kind>\w+)"}
    *parts, last = _PLACE.split(opening)
    return r"\s*" + "".join(places.get(part) or pattern_of(part) for part in parts) + re.escape(last)


_OTHERWISE_IN_PYTHON = frozenset({"boolean", "null", "array", "object"})


def _only(part: Schema, kinds: frozenset[str]) -> Schema:
    """Return the schema with these types alone, where it states types."""
    return {**part, "type": sorted(kinds)} if isinstance(part.get("type"), str | list) else part


def _without_strings(part: Schema, root: Schema, kinds: frozenset[str]) -> dict[str, object]:
    """Return the schema of the values that are no texts, with the document's definitions."""
    definitions = {name: root[name] for name in ("$defs", "definitions") if name in root}
    kept: dict[str, object] = {**definitions, **part, "x-guidance": {**JSON_STYLE, "lenient": True}}
    if isinstance(part.get("type"), list) or (
        part.get("type") is None and not {"anyOf", "oneOf", "$ref"} & part.keys()
    ):
        kept["type"] = sorted(kinds - ({"integer"} if "number" in kinds else set()))
    if isinstance(part.get("enum"), list):
        kept["enum"] = [value for value in listed(part["enum"]) if not isinstance(value, str)]
    return kept


def _string(part: Schema, close: str) -> str:
    """Return the rest of the rule of a text up to its closing mark, as far as its schema bounds it."""
    if choices := [choice for choice in values_of(part) or () if isinstance(choice, str)]:
        written = [choice + close for choice in choices if (choice + close).find(close) == len(choice)]
        return ": " + " | ".join(map(lark_quoted, checked_choices(written, choices)))
    return f"[lazy]: /(.|\\n){length_bound(part)}/ {lark_quoted(close)}"
