"""Reads calls in one form from their mark on, as their text comes."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from prolepsis.engine.text.answer_formats.json_arguments import JsonArguments
from prolepsis.engine.text.answer_formats.schemas import Function
from prolepsis.engine.text.answer_formats.tool_format import ID, NAME, ArgumentsReader, ToolFormat, pattern_of

PieceKind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer; a `call` piece holds the function's name, `arguments` pieces its JSON as it comes."""

    kind: PieceKind
    text: str
    call: int = 0  # number of the call in the answer, from 0


@dataclass(frozen=True, slots=True)
class _Patterns:
    """What the texts of one form match."""

    first: re.Pattern[str]  # from the mark to the first call's arguments
    another: re.Pattern[str] | None  # from a call's arguments to the next ones, in the same group
    closing: re.Pattern[str] | None  # the end of what the mark opened; None: it has no text of its own


@lru_cache
def _patterns(form: ToolFormat) -> _Patterns:
    middle = f"(?:{pattern_of(form.middle)}|{pattern_of(form.also)})" if form.also else pattern_of(form.middle)
    call = pattern_of(form.head + NAME) + middle + (r"(?=\{)" if isinstance(form.arguments, JsonArguments) else "")
    another = r"\s*" + pattern_of(form.tail + form.between) + call if form.is_group else None
    whole = form.tail + form.end
    closing = whole.lstrip("}] \n") or whole
    return _Patterns(
        re.compile(pattern_of(form.begin) + call),
        None if another is None else re.compile(another),
        re.compile(pattern_of(closing).removesuffix(r"\s*")) if closing else None,
    )


class CallReader:
    """Reads one group of calls, or one call of a form without groups. A call that cannot be read is given back.

    Without `parallel`, one call is read. Where calls are `required`, what the answer's end cuts before a call's
    arguments is dropped.
    """

    def __init__(
        self, form: ToolFormat, functions: Mapping[str, Function], first: int, *, parallel: bool, required: bool
    ) -> None:
        self.num_calls = first
        self.refused = ""  # what was read and is no call
        self._form = form
        self._functions = functions
        self._parallel = parallel
        self._required = required
        self._patterns = _patterns(form)
        self._state: Literal["head", "arguments", "tail", "done"] = "head"
        self._arguments: ArgumentsReader | None = None

    @property
    def done(self) -> bool:
        return self._state == "done"

    def read(self, text: str, pieces: list[Piece], *, ended: bool) -> str:
        """Add what `text` makes certain to `pieces`, and return the rest of it."""
        while True:
            before = self._state, len(text)
            if self._state == "head":
                text = self._head(text, pieces, ended=ended)
            elif self._state == "arguments":
                assert self._arguments is not None, "a call begins before its arguments"
                written, end = self._arguments.read(text)
                if written:
                    pieces.append(Piece("arguments", written, self.num_calls - 1))
                if self._arguments.ended:
                    self._state = "tail"
                text = text[end:]
            elif self._state == "tail":
                text = self._tail(text, pieces, ended=ended)
            if self.done or (self._state, len(text)) == before:
                return text

    def _head(self, text: str, pieces: list[Piece], *, ended: bool) -> str:
        match = self._patterns.first.match(text)
        if match is not None:
            self._begin(match["name"], pieces)
            return text[match.end() :]
        closing = self._patterns.closing
        end = closing.search(text, len(self._form.mark)) if closing is not None else None
        if end is None and (self._required or not ended):
            return text
        self._state = "done"
        last, rest = (len(text), len(text)) if end is None else end.span()
        call = json_call(text[len(self._form.mark) : last])  # one written otherwise, such as with its arguments first
        if call is None:
            self.refused = text[:rest]
        else:
            pieces += call.pieces(self.num_calls)
            self.num_calls += 1
        return text[rest:]

    def _begin(self, name: str, pieces: list[Piece]) -> None:
        pieces.append(Piece("call", name, self.num_calls))
        self.num_calls += 1
        function = self._functions.get(name, Function(name, {"type": "object"}))
        self._arguments = self._form.arguments.reader(function, self._form.tail)
        self._state = "arguments"

    def _tail(self, text: str, pieces: list[Piece], *, ended: bool) -> str:
        """Skip what is left of a call, up to the next one or the end."""
        patterns = self._patterns
        another = patterns.another.match(text) if patterns.another is not None and self._parallel else None
        if another is not None:
            self._begin(another["name"], pieces)
            return text[another.end() :]
        if patterns.closing is None:
            self._state = "done"
            return text
        end = patterns.closing.search(text)
        if end is None:
            return "" if ended else text
        if self._form.is_group and not self._form.end and not ended and self._parallel:
            follows = self._form.between + self._form.head.partition(ID)[0]
            if follows.startswith(text[end.end() :][: len(follows)]):
                return text  # another call may follow
        self._state = "done"
        return text[end.end() :]


@dataclass(frozen=True, slots=True)
class JsonCall:
    """A call that is one object of JSON."""

    name: str
    arguments: str

    def pieces(self, number: int) -> tuple[Piece, Piece]:
        return Piece("call", self.name, number), Piece("arguments", self.arguments, number)


def json_call(text: str) -> JsonCall | None:
    """Return the call that a text is, None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return JsonCall(value["name"], written)


def is_json_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
