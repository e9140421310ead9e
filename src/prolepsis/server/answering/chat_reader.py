"""Reads the answers of a chat as their deltas come: content, reasoning and tool calls."""

from collections.abc import Sequence
from uuid import uuid4

from prolepsis.engine.text.answer_formats.answer_parser import AnswerParser
from prolepsis.engine.text.answer_formats.call_reader import Piece
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta


class ChatReader:
    """Reads one sample's deltas; `pieces` since the last delta, and how the answer ended."""

    def __init__(self, prepared: PreparedRequest) -> None:
        self.call_ids: list[str] = []
        tools = prepared.tools
        self._parser = AnswerParser(
            prepared.formats,
            prepared.thinking,
            tools.functions,
            parallel=tools.parallel,
            required=tools.required,
            fits=prepared.fits,
        )

    def take(self, delta: Delta) -> Sequence[Piece]:
        pieces = self._parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += self._parser.finish()
        for _ in range(self._parser.num_calls - len(self.call_ids)):
            self.call_ids.append(f"call_{uuid4().hex[:24]}")
        return pieces

    def finish_reason(self, delta: Delta) -> str | None:
        """Return OpenAI's reason: `tool_calls` where an answer with calls ended by itself."""
        return "tool_calls" if delta.finish_reason == "stop" and self.call_ids else delta.finish_reason
