"""Redacts what leaves the organisation: no secrets or personal data, and numbers in place of tenants, keys and people.

A name has the same number in all files, so a reader can still see that one person did two things.
"""

import re
from collections.abc import Iterator, Mapping

from prolepsis.core.audit_event import SERVER
from prolepsis.redaction.values import redacted, redacted_text

_KINDS = {"tenant": "tenant", "key_id": "key", "actor": "person", "by": "person", "author": "person"}
"""Fields that hold a name, and what it is called instead."""
_OF_TENANTS = re.compile(r"metrics_tenants|\w+_by_tenant")
_SPELT = re.compile(r"(tenant|key):(.+)")
_LEFT_OUT = frozenset(
    {
        *("http_request_id", "answer_id", "trace_id", "hash"),
        *("salt", "digest_salt", "prompt_digest", "output_digests", "details_digest"),
    }
)
"""Names that clients chose, and fields with which a guess at a text can be checked."""
_KEPT = frozenset({"", SERVER, "default", "developer", "no tenant", "other"})
"""Names that stand for no particular person."""
_SHORTEST = 3
"""Characters of a name that is looked for in texts."""
_HOME = re.compile(r"(/(?:home|Users)/)[^/\s\"']+")
_NAMED_BY_CLIENTS = re.compile(
    r"""("(?:(?:http_)?request|trace|span)_id": *")((?:[^"\\]|\\.)*)|\b((?:(?:http_)?request|trace|span)_id=)(\S+)"""
)
"""In lines of a log, JSON or text: ids that may be a client's `x-request-id` or `traceparent`."""
_OUR_ID = re.compile(r"[a-z]+-[0-9a-f]{32}(?:-\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Redactor:
    """Learns names from all values first (`learn`), and then returns values and texts without them."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._numbers: dict[str, int] = {}
        self._found: re.Pattern[str] | None = None

    def learn(self, value: object) -> None:
        """Take the names in a value."""
        for kind, name in _named(value):
            if name not in _KEPT and name not in self._names:
                self._numbers[kind] = self._numbers.get(kind, 0) + 1
                self._names[name] = f"{kind} {self._numbers[kind]}"
        longest = sorted((name for name in self._names if len(name) >= _SHORTEST), key=len, reverse=True)
        self._found = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)") if longest else None

    def value(self, value: object) -> object:
        """Return plain JSON values redacted."""
        return redacted(self._renamed(value))

    def text(self, text: str) -> str:
        """Return a text redacted."""
        return redacted_text(self._without_names(_NAMED_BY_CLIENTS.sub(_without_id, text)))

    def metrics(self, text: str) -> str:
        """Return metrics in Prometheus's form with redacted labels; numbers stay as they are."""
        known: dict[str, str] = {}

        def label(match: re.Match[str]) -> str:
            value = match[2]
            if value not in known:
                if match[1] in _KINDS:
                    self.learn({match[1]: value})
                known[value] = redacted_text(self._names.get(value, value))
            return f'{match[1]}="{known[value]}"'

        return _LABEL.sub(label, text)

    def _renamed(self, value: object, *, names_tenants: bool = False) -> object:
        if isinstance(value, Mapping):
            return {
                self._names[name] if names_tenants and name in self._names else self._renamed_field(str(name)): (
                    self._renamed(part, names_tenants=_OF_TENANTS.fullmatch(str(name)) is not None)
                )
                for name, part in value.items()
                if name not in _LEFT_OUT
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [self._renamed(part) for part in value]
        return self._renamed_text(value) if isinstance(value, str) else value

    def _renamed_text(self, text: str) -> str:
        """A text of several words may have a name among them; one word is a name or has none."""
        if text in self._names:
            return self._names[text]
        if _SPELT.fullmatch(text):
            return self._renamed_field(text)
        return self._without_names(text) if any(map(str.isspace, text)) else _HOME.sub(r"\1person", text)

    def _renamed_field(self, text: str) -> str:
        """The name of a field is kept, except for a limit or scope such as `tenant:acme`."""
        spelt = _SPELT.fullmatch(text)
        return f"{spelt[1]}:{self._names.get(spelt[2], spelt[2])}" if spelt else text

    def _without_names(self, text: str) -> str:
        text = _HOME.sub(r"\1person", text)
        return self._found.sub(lambda match: self._names[match[0]], text) if self._found else text


def _without_id(found: re.Match[str]) -> str:
    name, value = found[1] or found[3], found[2] if found[1] else found[4]
    return found[0] if _OUR_ID.fullmatch(value) or value in ("None", "") else f"{name}[LEFT OUT]"


def _named(value: object, kind: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names in a value, each with its kind; every text in a field that has names is one."""
    if isinstance(value, str):
        if spelt := _SPELT.fullmatch(value):
            yield spelt[1], spelt[2]
        elif kind:
            yield kind, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from _named(str(name), kind if kind == "tenant" else "")
            of_tenants = isinstance(name, str) and _OF_TENANTS.fullmatch(name)
            yield from _named(part, "tenant" if of_tenants else _KINDS.get(name, ""))
    elif isinstance(value, list | tuple | set | frozenset):
        variables = [part.get("var") for part in value if isinstance(part, Mapping)]  # targeting of a flag
        inner = next((_KINDS[name] for name in variables if name in _KINDS), kind)
        for part in value:
            yield from _named(part, "" if isinstance(part, Mapping) and "var" in part else inner)
