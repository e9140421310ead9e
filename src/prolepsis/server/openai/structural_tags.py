"""Structural tags as grammars: free text in which a trigger begins a tag, and the formats of vLLM and xgrammar."""

import json
from collections.abc import Iterable, Mapping, Sequence

from prolepsis.core.errors import InvalidParameter
from prolepsis.core.requests import JSON_STYLE
from prolepsis.engine.grammar.relaxed import held_form
from prolepsis.engine.grammar.source import as_lark, lark_terminal
from prolepsis.engine.models.answer_formats.tool_format import lark_quoted
from prolepsis.server.openai.bodies import TagFields

Format = Mapping[str, object]
_PLAIN = ("const_string", "json_schema", "regex", "grammar")
_FREE = ("any_text", "triggered_tags")
_FIELDS: Mapping[str, Mapping[str, type | tuple[type, ...]]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": (dict, bool)},
    "any_text": {},
    "regex": {"pattern": str},
    "grammar": {"grammar": str},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "tag": {"begin": str, "content": dict, "end": str},
    "triggered_tags": {"triggers": list, "tags": list},
    "tags_with_separator": {"tags": list, "separator": str},
}
"""The formats, and what each must have."""
_MAY = ("type", "at_least_one", "stop_after_first")


def tagged(wanted: TagFields) -> str:
    """Return the grammar of what `wanted` describes; raises `InvalidParameter` for what cannot be kept."""
    made, form = _Made(), wanted.format
    if form is None:
        contents = [{"type": "json_schema", "json_schema": tag.schema_ or {}} for tag in wanted.structures or ()]
        given = zip(wanted.structures or (), contents, strict=True)
        tags = [{"type": "tag", "begin": tag.begin, "content": content, "end": tag.end} for tag, content in given]
        form = {"type": "triggered_tags", "triggers": wanted.triggers, "tags": tags}
    start = made.item(form, None, "structural_tag.format" if wanted.format else "structural_tag")
    return "\n".join(["%llguidance {}", f"start: {start}", *made.rules, r"TEXT: /(.|\n)*/"]) + "\n"


def _refused(place: str, given: object, allowed: str) -> InvalidParameter:
    return InvalidParameter(f"{place} is {str(given)[:64]!r}; allowed: {allowed}", param=place[:200])


class _Made:
    """Formats as items of lark, with their rules."""

    def __init__(self) -> None:
        self.rules: list[str] = []

    def item(self, given: object, end: str | None, place: str) -> str:
        """Return an item for a format with the text `end` behind it; None: nothing follows, empty: no fixed text."""
        form, behind = _checked(given, place), lark_quoted(end or "")
        if form["type"] == "any_text":
            return self._text(end, place)
        if form["type"] == "tag":
            close = str(form["end"])
            inner = self.item(form["content"], close or end, f"{place}.content")
            return f"{lark_quoted(str(form['begin']))} {inner} {behind if close else ''}"
        if form["type"] in _PLAIN:
            return f"{_plain(form)} {behind}"
        return self._of_several(form, end, place)

    def _of_several(self, form: Format, end: str | None, place: str) -> str:
        name = "elements" if "elements" in form else "tags"
        parts = form[name]
        if not isinstance(parts, list) or not parts:
            raise _refused(f"{place}.{name}", parts, "a list of at least one")
        places = [f"{place}.{name}[{i}]" for i in range(len(parts))]
        if form["type"] == "or":
            return _any(self.item(one, end, where) for one, where in zip(parts, places, strict=True))
        if form["type"] == "sequence":
            return self._sequence(parts, places, end)
        is_one, must, behind = form.get("stop_after_first"), form.get("at_least_one"), lark_quoted(end or "")
        if form["type"] == "triggered_tags":
            tags = _any(self._triggered(form, one, where) for one, where in zip(parts, places, strict=True))
            text = self._text(end, place)
            if is_one:
                return f"({tags} {behind})" if must else f"({tags} {behind} | {text})"
            return f"{tags}{'+' if must else '*'} {text}"
        tags = _any(self.item(one, "", where) for one, where in zip(parts, places, strict=True))
        more = "" if is_one else f" ({lark_quoted(str(form['separator']))} {tags})*"
        return f"({tags}{more}){'' if must else '?'} {behind}"

    def _sequence(self, parts: list[object], places: Sequence[str], end: str | None) -> str:
        """Return an item for formats behind each other; free text ends where the text that the next begins with is."""
        items, cut = list[str](), ""
        for i, (part, place) in enumerate(zip(parts, places, strict=True)):
            form = dict(_checked(part, place))
            opens = "value" if form["type"] == "const_string" else "begin"
            form |= {opens: str(form[opens]).removeprefix(cut)} if cut else {}
            following = parts[i + 1] if i + 1 < len(parts) else None
            cut = ""
            if form["type"] in _FREE and isinstance(following, dict):
                cut = str(following.get("value" if following.get("type") == "const_string" else "begin") or "")
            items.append(self.item(form, end if following is None else cut, place))
        return " ".join(items)

    def _triggered(self, form: Format, given: object, place: str) -> str:
        tag, triggers = _checked(given, place), form["triggers"]
        begin = str(tag.get("begin"))
        found = [one for one in triggers if isinstance(one, str) and one] if isinstance(triggers, list) else []
        trigger = next((one for one in found if begin.startswith(one)), None)
        if trigger is None:
            raise _refused(f"{place}.begin", begin, "a text that begins with one of the triggers")
        rest = self.item({**tag, "begin": begin.removeprefix(trigger)}, "", place)
        return f"{self._text(trigger, place)} {rest}"

    def _text(self, end: str | None, place: str) -> str:
        """Return an item for any text up to `end`."""
        if end is None:
            return "TEXT"
        if not end:
            raise _refused(place, "free text", "before a const_string, a tag or the end, where it has to stop")
        self.rules.append(f"text_{len(self.rules)}[lazy]: TEXT {lark_quoted(end)}")
        return self.rules[-1].partition("[")[0]


def _plain(form: Format) -> str:
    """Return an item for a format without others inside."""
    match form["type"]:
        case "const_string":
            return lark_quoted(str(form["value"]))
        case "regex":
            return lark_terminal(str(form["pattern"]))
        case "grammar":
            return f"%lark {{\n{as_lark(str(form['grammar']))}\n}}"
    schema = form["json_schema"] if isinstance(form["json_schema"], dict) else {}
    return f"%json {json.dumps({**held_form(schema).schema, 'x-guidance': JSON_STYLE}, ensure_ascii=False)}"


def _any(items: Iterable[str]) -> str:
    return f"({' | '.join(items)})"


def _checked(form: object, place: str) -> Format:
    """Return a format that has what it must have, and nothing else that would mean something."""
    kind = form.get("type") if isinstance(form, dict) else None
    if not isinstance(form, dict) or kind not in _FIELDS:
        raise _refused(f"{place}.type", kind, ", ".join(_FIELDS))
    fields = _FIELDS[str(kind)]
    wrong = [name for name, types in fields.items() if not isinstance(form.get(name), types)]
    wrong += [name for name, value in form.items() if name not in (*fields, *_MAY) and value and value != "json"]
    if wrong:
        raise _refused(f"{place}.{wrong[0]}", form.get(wrong[0]), f"a {kind} with {', '.join(fields) or 'no more'}")
    return form
