"""Checks whether the tool calls of an answer are complete as its client reads them; guardrails may use the result."""

import json

from prolepsis.api.deltas import Delta
from prolepsis.api.openai.chat_reader import ChatReader, Piece
from prolepsis.api.openai.conversation import CALL
from prolepsis.api.openai.prepared import PreparedRequest


class ToolCallCheck:
    """The calls of one sample, from the deltas that go to the client."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._reader = ChatReader(prepared)
        self._is_parallel = prepared.tools.parallel
        self._arguments: dict[int, str] = {}
        self._is_broken = False

    def take(self, delta: Delta) -> None:
        """Take in what the client gets next."""
        for piece in self._reader.take(delta):
            self._see(piece)

    @property
    def whole(self) -> bool | None:
        """Whether every call that the sample began is an object of JSON with a name; None: it began none."""
        if not self._arguments and not self._is_broken:
            return None
        return not self._is_broken and all(map(_is_object, self._arguments.values()))

    def _see(self, piece: Piece) -> None:
        if piece.kind in ("call", "arguments"):
            text = piece.text if piece.kind == "arguments" else ""
            self._arguments[piece.call] = self._arguments.get(piece.call, "") + text
        elif piece.kind == "content" and CALL in piece.text and (self._is_parallel or not self._arguments):
            self._is_broken = True  # a call that could not be read is given back as content


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
