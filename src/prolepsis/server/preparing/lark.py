"""Grammars in Lark: forms as rules, and structural tags.

A tag stands in free text in which a trigger begins it, or in the formats of vLLM and xgrammar.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import JSON_STYLE, GrammarSpec
from prolepsis.engine.text.answer_formats.tool_format import lark_quoted
from prolepsis.engine.text.grammar.relaxed import held_form
from prolepsis.engine.text.grammar.satisfiable import mapped
from prolepsis.engine.text.grammar.source import as_lark, lark_terminal
from prolepsis.server.preparing.bodies import TagFields

TEXT = r"TEXT: /(.|\n)*/"
Format = Mapping[str, Any]
_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": (dict, bool)},
    "any_text": {},
    "regex": {"pattern": str},
    "grammar": {"grammar": str},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "tag": {"begin": str, "content": dict, "end": str},
    "triggered_tags": {"tags": list, "triggers": list},
    "tags_with_separator": {"tags": list, "separator": str},
}
"""The formats, and what each must have."""
_MAY = ("type", "at_least_one", "stop_after_first")
_FREE = ("any_text", "triggered_tags")
_PLAIN: Mapping[str, Callable[[Format], GrammarSpec]] = {
    "const_string": lambda form: GrammarSpec("choice", json.dumps([form["value"]])),
    "regex": lambda form: GrammarSpec("regex", form["pattern"]),
    "grammar": lambda form: GrammarSpec("lark", as_lark(form["grammar"])),
    "json_schema": lambda form: GrammarSpec("json_schema", json.dumps(held_form(mapped(form, "json_schema")).schema)),
}
"""Formats without others inside."""


def as_rule(form: GrammarSpec) -> str:
    if form.kind == "json_schema":
        return f"%json {json.dumps({**json.loads(form.source), 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"
    if form.kind == "choice":
        return " | ".join(lark_quoted(choice) for choice in json.loads(form.source))
    return f"%lark {{\n{form.source}\n}}" if form.kind == "lark" else lark_terminal(form.source)


def as_grammar(start: str, rules: Sequence[str]) -> str:
    return "\n".join(["%llguidance {}", f"start: {start}", *rules]) + "\n"


def tagged(wanted: TagFields) -> str:
    """Return the grammar of what `wanted` describes; raises `InvalidParameter` for what cannot be kept."""
    made, form = _Items(), wanted.format
    if form is None:
        contents = [{"type": "json_schema", "json_schema": tag.schema_ or {}} for tag in wanted.structures or ()]
        given = zip(wanted.structures or (), contents, strict=True)
        tags = [{"type": "tag", "begin": tag.begin, "content": content, "end": tag.end} for tag, content in given]
        form = {"type": "triggered_tags", "triggers": wanted.triggers, "tags": tags}
    try:
        start = made.item(form, None, "structural_tag.format" if wanted.format else "structural_tag")
    except RecursionError as error:
        raise _refused("structural_tag.format", "nested too deeply", "some hundred levels") from error
    return as_grammar(start, [*made.rules, TEXT])


class _Items:
    """Formats as items of lark, with their rules."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def item(self, given: object, end: str | None, place: str) -> str:
        """Return an item for a format with the text `end` behind it; None: nothing follows, empty: no fixed text."""
        form, behind = _checked(given, place), lark_quoted(end or "")
        if (plain := _PLAIN.get(form["type"])) is not None:
            return f"{as_rule(plain(form))} {behind}"
        if form["type"] == "any_text":
            return self._text(end, place)
        if form["type"] == "tag":
            inner = self.item(form["content"], form["end"] or end, f"{place}.content")
            return f"{lark_quoted(form['begin'])} {inner} {behind if form['end'] else ''}"
        name = "elements" if "elements" in form else "tags"
        parts = [(part, f"{place}.{name}[{i}]") for i, part in enumerate(form[name])]
        if not parts:
            raise _refused(f"{place}.{name}", parts, "a list of at least one")
        if form["type"] == "or":
            return _any(self.item(part, end, where) for part, where in parts)
        if form["type"] == "sequence":
            return self._sequence(parts, end)
        return self._tags(form, parts, end, place)

    def _tags(self, form: Format, parts: Sequence[tuple[object, str]], end: str | None, place: str) -> str:
        is_one, must, behind = form.get("stop_after_first"), form.get("at_least_one"), lark_quoted(end or "")
        if form["type"] == "tags_with_separator":
            tags = _any(self.item(part, "", where) for part, where in parts)
            more = "" if is_one else f" ({lark_quoted(form['separator'])} {tags})*"
            return f"({tags}{more}){'' if must else '?'} {behind}"
        tags, text = _any(self._triggered(form, part, where) for part, where in parts), self._text(end, place)
        if is_one:
            return f"({tags} {behind}{'' if must else f' | {text}'})"
        return f"{tags}{'+' if must else '*'} {text}"

    def _sequence(self, parts: Sequence[tuple[object, str]], end: str | None) -> str:
        """Return an item for formats behind each other; free text ends where the text that the next begins with is."""
        items, cut = list[str](), ""
        for i, (part, place) in enumerate(parts):
            form = dict(_checked(part, place))
            if cut:
                name = "value" if "value" in form else "begin"
                form[name] = form[name].removeprefix(cut)
            following = parts[i + 1][0] if i + 1 < len(parts) else None
            opens = following if form["type"] in _FREE and isinstance(following, dict) else {}
            cut = str(opens.get("value") or opens.get("begin") or "")
            items.append(self.item(form, end if following is None else cut, place))
        return " ".join(items)

    def _triggered(self, form: Format, given: object, place: str) -> str:
        tag = _checked(given, place)
        begin = str(tag.get("begin"))
        triggers = [text for text in form["triggers"] if isinstance(text, str) and text]
        trigger = next((text for text in triggers if begin.startswith(text)), None)
        if trigger is None:
            raise _refused(f"{place}.begin", begin, "a text that begins with one of the triggers")
        rest = self.item({**tag, "begin": begin.removeprefix(trigger)}, "", place)
        return f"{self._text(trigger, place)} {rest}"

    def _text(self, end: str | None, place: str) -> str:
        if end is None:
            return "TEXT"
        if not end:
            raise _refused(place, "free text", "before a const_string, a tag or the end, where it has to stop")
        self.rules.append(f"text_{len(self.rules)}[lazy]: TEXT {lark_quoted(end)}")
        return f"text_{len(self.rules) - 1}"


def _any(items: Iterable[str]) -> str:
    return f"({' | '.join(items)})"


def _refused(place: str, given: object, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{place} is {str(given)[:64]!r}; allowed: {allowed}", param=place[:200])


def _checked(form: object, place: str) -> Format:
    """Return a format that has what it must have, and nothing else that would mean something."""
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(form, dict) or not isinstance(kind, str) or kind not in _FIELDS:
        raise _refused(f"{place}.type", kind, ", ".join(_FIELDS))
    fields = _FIELDS[kind]
    wrong = [name for name, types in fields.items() if not isinstance(form.get(name), types)]
    wrong += [name for name, value in form.items() if name not in (*fields, *_MAY) and value and value != "json"]
    if wrong:
        raise _refused(f"{place}.{wrong[0]}", form.get(wrong[0]), f"a {kind} with {', '.join(fields) or 'no more'}")
    return form
