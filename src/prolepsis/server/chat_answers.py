"""One chat answer as it grows: its text read into content, reasoning and tool calls."""

from collections.abc import Sequence
from uuid import uuid4

from prolepsis.server.admitted import Showing
from prolepsis.server.answer_parser import AnswerParser, Piece
from prolepsis.server.choices import Delta


class ChatAnswer:
    """Reads one sample's deltas; `pieces` since the last delta, and how the answer ended."""

    def __init__(self, showing: Showing) -> None:
        self.call_ids: list[str] = []
        self._parser = AnswerParser(showing.thinking, tools=showing.tools, parallel=showing.parallel)

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
