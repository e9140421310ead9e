"""How a family of models writes tool calls: a row that shows one call, with places for what differs."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from prolepsis.core.given_text import joined
from prolepsis.engine.text.answer_formats.json_arguments import JsonArguments
from prolepsis.engine.text.answer_formats.schemas import Function

NAME, ARGUMENTS, ID, INDEX, NUMBER = "⟨name⟩", "⟨arguments⟩", "⟨id⟩", "⟨index⟩", "⟨number⟩"
"""Places; calls have indices from 0 and numbers from 1."""
_PLACE = re.compile(f"({NAME}|{ARGUMENTS}|{ID}|{INDEX}|{NUMBER})")


@dataclass(frozen=True, slots=True)
class Call:
    """A whole call."""

    name: str
    arguments: Mapping[str, object]
    id: str = ""


class ArgumentsReader(Protocol):
    """Reads the arguments of one call as they come."""

    ended: bool

    def read(self, text: str) -> tuple[str, int]:
        """Return what `text` makes certain of the arguments, as JSON, and how many of its characters are done with."""


class Arguments(Protocol):
    """A way of writing a call's arguments."""

    @property
    def texts(self) -> tuple[str, ...]:
        """All fixed texts around them."""

    def write(self, arguments: Mapping[str, object]) -> str:
        """Return the arguments as the model writes them."""

    def grammar(self, function: Function, rule: str) -> tuple[str, list[str]]:
        """Return the arguments in lark, and the rules that this takes, whose names begin with `rule`.

        Raises `InvalidParameter` for arguments that cannot be written so.
        """

    def reader(self, function: Function, tail: str) -> ArgumentsReader:
        """Return what reads the arguments of one call; `tail` is the text behind them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFormat:
    """One form. Calls of one answer stand in a group between `begin` and `end`, or each by itself where both are empty.

    A `begin` without an `end`, or the other way around, makes no sense.
    """

    name: str
    call: str  # one call with its places; the id is the model's own, which clients do not see
    mark: str
    """The text at which calls begin, with which `begin` and the call begin; in free text it opens a call."""
    arguments: Arguments = JsonArguments()  # noqa: RUF009  # it is frozen
    also: str = ""  # another text that may stand between name and arguments
    begin: str = ""
    between: str = "\n"  # text between two calls
    end: str = ""
    parallel: bool = True  # one answer may hold several calls
    at_start: bool = False  # calls are the whole answer: in a text, the mark opens none
    fenced: bool = False
    """Models with it often write fenced JSON instead: an answer that is nothing else is calls too."""
    ids: Literal["any", "nine", "numbered"] = "any"
    """Ids in a conversation: as the client gives them, nine letters and digits, or `functions.NAME:NUMBER`."""
    hints: tuple[str, ...] = ()
    """Texts in a chat template that identify the form, where the template writes no calls."""

    @property
    def head(self) -> str:
        return self.call.partition(NAME)[0]

    @property
    def middle(self) -> str:
        return self.call.partition(NAME)[2].partition(ARGUMENTS)[0]

    @property
    def tail(self) -> str:
        return self.call.partition(ARGUMENTS)[2]

    @property
    def is_group(self) -> bool:
        return bool(self.begin)

    @property
    def texts(self) -> tuple[str, ...]:
        whole = (self.begin, *_PLACE.split(self.call)[::2], self.also, self.between, self.end, *self.arguments.texts)
        return tuple(text for text in whole if text)

    def write(self, calls: Sequence[Call]) -> str:
        """Return the calls as the model writes them."""
        return self.written([(call.name, self.arguments.write(call.arguments), call.id) for call in calls])

    def written(self, calls: Sequence[tuple[str, str, str]]) -> str:
        """Return calls, each as its name, its arguments' text and its id; given text stays known as such."""
        parts, written = _PLACE.split(self.call), list[str]()
        for i, (name, arguments, call_id) in enumerate(calls):
            places = {NAME: name, ARGUMENTS: arguments, ID: call_id, INDEX: str(i), NUMBER: str(i + 1)}
            written.append(joined([places.get(part, part) for part in parts]))
        return joined((self.begin, joined(written, self.between), self.end))

    def history_id(self, call_id: str, name: str, number: int) -> str:
        """Return the id of a conversation's `number`-th call, from 0, as the model's template takes it."""
        if self.ids == "nine":
            return hashlib.sha256(call_id.encode()).hexdigest()[:9]
        return f"functions.{name}:{number}" if self.ids == "numbered" else call_id


def pattern_of(text: str) -> str:
    """Return a regular expression of a fixed text with its places, in which white space may differ."""
    places = {NAME: r"(?P<name>[\w./-]+)(?![\w./-]|$)", ID: r"[\w.:-]*", INDEX: r"\d*", NUMBER: r"\d*", ARGUMENTS: ""}
    parts = (places.get(part) or _spaced(part) for part in _PLACE.split(text))
    return "".join(parts)


def _spaced(text: str) -> str:
    spaced = re.sub(r"\s+", "\x00", text)
    escaped = "".join(rf"\s*{re.escape(char)}\s*" if char in "{}[],:" else re.escape(char) for char in spaced)
    return escaped.replace(re.escape("\x00"), r"\s*").replace('"arguments"', '"(?:arguments|parameters)"')


def lark_text(text: str) -> list[str]:
    """Return a fixed text with its places as lark's items, without the places of name and arguments."""
    places = {ID: "CALL_ID", INDEX: "CALL_INDEX", NUMBER: "CALL_INDEX", NAME: "", ARGUMENTS: ""}
    parts = (places.get(part, lark_quoted(part)) for part in _PLACE.split(text))
    return [part for part in parts if part]


LARK_PLACES = {"CALL_ID": "CALL_ID: /[A-Za-z0-9]{9}/", "CALL_INDEX": "CALL_INDEX: /[0-9]{1,3}/"}


def lark_quoted(text: str) -> str:
    """Return a literal of lark, nothing for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def lark_sequence(items: Sequence[str], between: str, rule: str) -> tuple[str, list[str]]:
    """Return lark for `items` in their order with `between` between each two that are there; `item?` may be left out.

    The rules that this takes begin with `rule`: each says what may follow an item.
    """
    if not between:
        return " ".join(items), []
    rules, starts = list[str](), list[str]()
    for i, item in enumerate(items):
        follows = f" {rule}_after_{i + 1}" if i + 1 < len(items) else ""
        name = item.removesuffix("?")
        if i:
            rules.append(
                f"{rule}_after_{i}: " + (f"({between} {name})?" if item != name else f"{between} {name}") + follows
            )
        if all(before.endswith("?") for before in items[:i]):
            starts.append(name + follows)
    is_optional = all(item.endswith("?") for item in items)
    return f"({' | '.join(starts)}){'?' if is_optional else ''}", rules


def call_rules(form: ToolFormat, functions: Sequence[Function], *, parallel: bool) -> list[str]:
    """Return the rules `calls`, the calls of a whole answer, and `opened`, a group behind its mark in free text.

    Without `parallel` both are one call. Raises `InvalidParameter` for functions that the form cannot call.
    """
    parallel = parallel and form.parallel
    rules, names = list[str](), list[str]()
    for i, function in enumerate(functions):
        arguments, more = form.arguments.grammar(function, f"arguments_{i}")
        names.append(f"call_{i}")
        rules += [f"call_{i}: {_text(function.name)} {_middle(form)} {arguments} {_text(form.tail)}", *more]
    rules.append(f"named: {' | '.join(names)}")
    another = f" ({_text(form.between + form.head)} named)*" if parallel else ""
    group = another if form.is_group else ""
    lead = form.begin + form.head
    rules += [
        f"calls: {_text(lead)} named{another} {_text(form.end)}",
        f"opened: {_text(lead.removeprefix(form.mark))} named{group} {_text(form.end)}",
    ]
    written = "\n".join(rules)
    return [*rules, *(rule for name, rule in LARK_PLACES.items() if name in written)]


def _middle(form: ToolFormat) -> str:
    return f"({_text(form.middle)} | {_text(form.also)})" if form.also else _text(form.middle)


def _text(text: str) -> str:
    return " ".join(lark_text(text))
