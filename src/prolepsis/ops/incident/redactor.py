"""Redacts what leaves the organisation: no secrets or personal data, and numbers in place of tenants, keys and people.

A name has the same number in all files, so a reader can still see that one person did two things.
"""

import json
import re
from collections.abc import Iterator, Mapping

from prolepsis.control.redaction.secrets import MARK, names_a_secret
from prolepsis.control.redaction.values import redacted, redacted_text
from prolepsis.core.audit_event import SERVER
from prolepsis.ops.incident.fields import FIELDS, OF_TENANTS, OUR_ID, is_our_word, kind_of_names, was_made

_SPELT = re.compile(r"(tenant|key):(.+)")
_KEPT = frozenset({"", SERVER, "default", "developer", "no tenant", "none", "other"})
"""Names that stand for no particular person."""
_SHORTEST = 3  # characters of a name that is looked for in texts
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"']+")
_NAMED_BY_CLIENTS = re.compile(
    r"""("(?:(?:http_)?request|trace|span)_id": *")((?:[^"\\]|\\.)*)|\b((?:(?:http_)?request|trace|span)_id=)(\S+)"""
)
"""In lines of a log, JSON or text: ids that may be a client's `x-request-id` or `traceparent`."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_EVENT = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z? \[\w+ *\] )(\w+)( +|$)")
"""How a line of the log begins: time, level and event."""
_VALUE = re.compile(r"""(\b\w+=)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\s'"]\S*)""")
_WORD = re.compile(r"[a-zA-Z_]\w*")
LEFT_OUT = "[LEFT OUT]"  # in place of a text whose field is not declared, and of a name that a client chose


class Redactor:
    """Learns names from all values first (`learn`), and then returns values and texts without them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._found: re.Pattern[str] | None = None

    def learn(self, value: object) -> None:
        """Take the names in a value."""
        known = len(self._names)
        for kind, name in _named(value):
            if name not in _KEPT and name not in self._names:
                self._numbers[kind] = self._numbers.get(kind, 0) + 1
                self._names[name] = f"{kind} {self._numbers[kind]}"
        if len(self._names) == known:
            return
        longest = sorted((name for name in self._names if len(name) >= _SHORTEST), key=len, reverse=True)
        self._found = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)") if longest else None

    def value(self, value: object, field: str = "", *, by_people: bool = False) -> object:
        """Return plain JSON values redacted, each field by what it is declared to hold.

        `field`: what the value is in; `by_people`: operators wrote that.
        """
        if isinstance(value, Mapping):
            return self._shown_fields(value, field, by_people=by_people)
        if isinstance(value, list | tuple | set | frozenset):
            of_parts = ["" if isinstance(part, Mapping) else field for part in value]
            return [self.value(part, of, by_people=by_people) for part, of in zip(value, of_parts, strict=True)]
        if isinstance(value, bool) or value in (None, ""):
            return value
        if names_a_secret(field) and (by_people or isinstance(value, str)):
            return MARK
        return self._shown_text(value, field, by_people=by_people) if isinstance(value, str) else redacted(value)

    def text(self, text: str) -> str:
        return redacted_text(self._without_names(_NAMED_BY_CLIENTS.sub(_without_id, text)))

    def log(self, text: str) -> str:
        """Return lines of a log redacted: fields by their kind, the rest as text."""
        return "".join(map(self._line, text.splitlines(keepends=True)))

    def metrics(self, text: str) -> str:
        """Return metrics in Prometheus's form with redacted labels; numbers stay as they are."""
        known: dict[tuple[str, str], str] = {}

        def label(match: re.Match[str]) -> str:
            key = match[1], match[2]
            if key not in known:
                self.learn({match[1]: match[2]})
                known[key] = str(self.value(match[2], match[1]))
            return f'{match[1]}="{known[key]}"'

        return _LABEL.sub(label, text)

    def _line(self, line: str) -> str:
        if line.startswith("{"):
            try:
                fields = json.loads(line)
            except ValueError:
                return self.text(line)
            return json.dumps(self._logged(fields), ensure_ascii=False) + line[len(line.rstrip("\r\n")) :]
        begins = _EVENT.match(line)
        if begins is None:
            return self.text(line)
        shown, end = begins[0], begins.end()
        for match in _VALUE.finditer(line, end):
            shown += self.text(line[end : match.start()]) + match[1] + self._logged_text(match[1][:-1], match[2])
            end = match.end()
        return shown + self.text(line[end:])

    def _logged(self, fields: Mapping[str, object]) -> object:
        self.learn(fields)
        return self.value({name: self._without_own_id(name, value) for name, value in fields.items()})

    def _without_own_id(self, name: str, value: object) -> object:
        """Ids that may be a client's have a mark in logs, which are read together with logs of other servers."""
        match = _NAMED_BY_CLIENTS.fullmatch(f"{name}={value}") if isinstance(value, str) else None
        return _without_id(match).partition("=")[2] if match else value

    def _logged_text(self, name: str, value: str) -> str:
        self.learn({name: value})
        quote = value[0] if value[0] in "'\"" else ""
        shown = str(self.value(self._without_own_id(name, value[1:-1] if quote else value), name))
        quote = quote or ("'" if " " in shown and shown != value and not shown.startswith("[") else "")
        return f"{quote}{shown}{quote}"

    def _shown_fields(self, fields: Mapping[object, object], field: str, *, by_people: bool) -> dict[str, object]:
        shown: dict[str, object] = {}
        for name, part in fields.items():
            if FIELDS.get(str(name)) == "left out":
                continue
            key = self._shown_key(str(name), of_tenants=OF_TENANTS.fullmatch(field) is not None)
            while key in shown:  # two names that became equal
                key += "'"
            holding = str(name) if name in FIELDS or FIELDS.get(field) != "text" else field  # a mapping of texts
            shown[key] = self.value(part, holding, by_people=by_people or FIELDS.get(str(name)) == "written")
        return shown

    def _shown_key(self, name: str, *, of_tenants: bool) -> str:
        """The name of a field is kept, except for a tenant's, or a limit or scope such as `tenant:acme`."""
        if of_tenants and name in self._names:
            return self._names[name]
        return name if _WORD.fullmatch(name) else redacted_text(self._renamed_field(name))

    def _shown_text(self, text: str, field: str, *, by_people: bool) -> str:
        """A text of several words may have a name among them; one word is a name or has none."""
        if is_our_word(field, text):
            return text
        if text in self._names:
            return self._names[text]
        if not by_people and was_made(field, text):
            return text
        if _SPELT.fullmatch(text):
            return self._renamed_field(text)
        if field and field not in FIELDS and not by_people:
            return LEFT_OUT
        return self.text(text) if any(map(str.isspace, text)) else redacted_text(_HOME.sub(r"\1person", text))

    def _renamed_field(self, text: str) -> str:
        spelt = _SPELT.fullmatch(text)
        return f"{spelt[1]}:{self._names.get(spelt[2], spelt[2])}" if spelt else text

    def _without_names(self, text: str) -> str:
        text = _HOME.sub(r"\1person", text)
        return self._found.sub(lambda match: self._names[match[0]], text) if self._found else text


def _without_id(match: re.Match[str]) -> str:
    name, value = match[1] or match[3], match[2] if match[1] else match[4]
    return match[0] if OUR_ID.fullmatch(value) or value in ("None", "") else f"{name}{LEFT_OUT}"


def _named(value: object, kind: str = "", field: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names in a value, each with its kind; every text in a field that has names is one."""
    if isinstance(value, str):
        if spelt := _SPELT.fullmatch(value):
            yield spelt[1], spelt[2]
        elif kind and not is_our_word(field, value):
            yield kind, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _named(str(name), "tenant" if OF_TENANTS.fullmatch(field) else "")
            yield from _named(part, kind_of_names(str(name), value), str(name))
    elif isinstance(value, list | tuple | set | frozenset):
        variables = [part.get("var") for part in value if isinstance(part, Mapping)]  # targeting of a flag
        inner = next((kind_of_names(str(name), {}) for name in variables if kind_of_names(str(name), {})), kind)
        for part in value:
            if not isinstance(part, Mapping):
                yield from _named(part, inner, field)
            elif "var" not in part:
                yield from _named({"by": kind, **part} if kind in ("tenant", "key") else part)
