"""Splits the text of a growing answer into content, reasoning and tool calls, however it is divided into deltas."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from uuid import uuid4

from prolepsis.api.deltas import Delta
from prolepsis.api.openai.conversation import Thinking
from prolepsis.api.openai.prepared import PreparedRequest
from prolepsis.core.marks import CALL, CALL_END, THINK, THINK_END

PieceKind = Literal["content", "reasoning", "call", "arguments"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an answer; a `call` piece holds the function's name, `arguments` pieces its JSON as it comes."""

    kind: PieceKind
    text: str
    call: int = 0
    """Number of the call in the answer, from 0."""


_HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([^"\\<]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)')
"""A call up to its arguments; ends before their brace."""


class AnswerParser:
    """One answer's text, piece by piece. White space next to a mark belongs to the mark and is dropped.

    A call that is not a JSON object with a name and arguments is given back as content, marks and all.
    Without `parallel`, what follows the first call is content. Where calls are `required`, what the answer's end cuts
    before a call's arguments is dropped.
    """

    def __init__(self, thinking: Thinking, *, tools: bool, parallel: bool = True, required: bool = False) -> None:
        self.num_calls = 0
        self._tools = tools
        self._parallel = parallel
        self._required = required
        self._state: Literal["start", "text", "thought", "head", "arguments", "tail"] = "start"
        self._may_think = thinking is Thinking.POSSIBLE
        self._passes = thinking is Thinking.NONE and not tools
        self._held = ""
        self._space = ""
        """White space before the last mark."""
        self._after_mark = False
        self._object = _JsonObject()
        if thinking is Thinking.OPENED:
            self._open("thought")
        elif not self._may_think:
            self._state = "text"

    def push(self, text: str) -> list[Piece]:
        """Take more text and return what it makes certain."""
        if self._passes:
            return [Piece("content", text)] if text else []
        self._held += text
        return self._read(ended=False)

    def finish(self) -> list[Piece]:
        """Return what was held back: the answer ended."""
        return self._read(ended=True)

    def _read(self, *, ended: bool) -> list[Piece]:
        pieces: list[Piece] = []
        while self._step(pieces, ended=ended):
            pass
        return _joined(pieces)

    def _step(self, pieces: list[Piece], *, ended: bool) -> bool:
        """Read as far as the present state goes; True if another state follows."""
        if self._state == "start":
            return self._start(ended=ended)
        if self._state == "text":
            return self._text(pieces, "content", CALL if self._may_call() else None, ended=ended)
        if self._state == "thought":
            return self._text(pieces, "reasoning", THINK_END, ended=ended)
        if self._state == "head":
            return self._head(pieces, ended=ended)
        return self._arguments(pieces) if self._state == "arguments" else self._tail()

    def _may_call(self) -> bool:
        return self._tools and (self._parallel or not self.num_calls)

    def _start(self, *, ended: bool) -> bool:
        """The answer may open with a thought."""
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held = text[len(THINK) :]
            self._open("thought")
            return True
        if THINK.startswith(text) and not ended:
            return False
        self._state = "text"
        return True

    def _text(self, pieces: list[Piece], kind: PieceKind, mark: str | None, *, ended: bool) -> bool:
        if self._after_mark:
            self._held = self._held.lstrip()
            self._after_mark = not self._held
        found = self._held.find(mark) if mark else -1
        if found >= 0 and mark is not None:
            before = self._held[:found].rstrip()
            _add(pieces, kind, before)
            self._space = self._held[len(before) : found]
            self._held = self._held[found + len(mark) :]
            self._open("head" if mark == CALL else "text")
            return True
        is_cut = ended and self._required and mark == CALL
        kept = _held_back(self._held, mark) if mark and (is_cut or not ended) else 0
        _add(pieces, kind, self._held[: len(self._held) - kept])
        self._held = self._held[len(self._held) - kept :]
        return False

    def _open(self, state: Literal["text", "thought", "head"]) -> None:
        self._state, self._after_mark = state, True

    def _head(self, pieces: list[Piece], *, ended: bool) -> bool:
        head = _HEAD.match(self._held)
        if head is not None:
            self._call(pieces, head.group(1))
            self._held = self._held[head.end() :]
            self._object = _JsonObject()
            self._state = "arguments"
            return True
        end = self._held.find(CALL_END)
        if end < 0 and (self._required or not ended):
            return False
        body = self._held if end < 0 else self._held[:end]
        self._held = "" if end < 0 else self._held[end + len(CALL_END) :]
        if not self._whole_call(pieces, body):
            _add(pieces, "content", self._space + CALL + body + ("" if end < 0 else CALL_END))
            self._state, self._after_mark = "text", False
        else:
            self._open("text")
        return end >= 0

    def _call(self, pieces: list[Piece], name: str) -> None:
        pieces.append(Piece("call", name, self.num_calls))
        self.num_calls += 1

    def _whole_call(self, pieces: list[Piece], body: str) -> bool:
        """Read a call that is written otherwise, such as with its arguments first."""
        try:
            value = json.loads(body)
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return False
        arguments = value.get("arguments", value.get("parameters", {}))
        self._call(pieces, value["name"])
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        pieces.append(Piece("arguments", text, self.num_calls - 1))
        return True

    def _arguments(self, pieces: list[Piece]) -> bool:
        end = self._object.end(self._held)
        _add(pieces, "arguments", self._held[:end], self.num_calls - 1)
        self._held = self._held[end:]
        if self._object.ended:
            self._state = "tail"
        return self._object.ended

    def _tail(self) -> bool:
        """Skip what is left of a call."""
        end = self._held.find(CALL_END)
        if end < 0:
            self._held = self._held[-len(CALL_END) + 1 :]
            return False
        self._held = self._held[end + len(CALL_END) :]
        self._open("text")
        return True


class _JsonObject:
    """Finds where a JSON object ends without parsing it; a `<` outside of its strings ends it too."""

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int:
        """Return how much of `text` belongs to the object."""
        for i, char in enumerate(text):
            if self._in_string:
                self._string(char)
            elif char == '"':
                self._in_string = True
            elif char in "{[":
                self._depth += 1
            elif char in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.ended = True
                    return i + 1
            elif char == "<":
                self.ended = True
                return i
        return len(text)

    def _string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False


def _held_back(text: str, mark: str) -> int:
    """Return how much of the end of `text` may yet turn out to belong to `mark`: white space and its beginning."""
    start = next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:n])), 0)
    before = text[: len(text) - start]
    return start + len(before) - len(before.rstrip())


def _add(pieces: list[Piece], kind: PieceKind, text: str, call: int = 0) -> None:
    if text:
        pieces.append(Piece(kind, text, call))


def _joined(pieces: list[Piece]) -> list[Piece]:
    """Join neighbours that belong together."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.kind == piece.kind != "call" and last.call == piece.call:
            joined[-1] = Piece(piece.kind, last.text + piece.text, piece.call)
        else:
            joined.append(piece)
    return joined


def is_json_object(text: str) -> bool:
    """Return whether a call's arguments are whole."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


class ChatReader:
    """Reads one sample's deltas; `pieces` since the last delta, and how the answer ended."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self.call_ids: list[str] = []
        tools = prepared.tools
        self._parser = AnswerParser(
            prepared.thinking, tools=bool(tools.callable), parallel=tools.parallel, required=tools.required
        )

    def take(self, delta: Delta) -> Sequence[Piece]:
        """Return what `delta` makes certain."""
        pieces = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        for _ in range(self._parser.num_calls - len(self.call_ids)):
            self.call_ids.append(f"call_{uuid4().hex[:24]}")
        return pieces

    def finish_reason(self, delta: Delta) -> str | None:
        """Return OpenAI's reason: `tool_calls` where an answer with calls ended by itself."""
        return "tool_calls" if delta.finish_reason == "stop" and self.call_ids else delta.finish_reason
