"""An answer as Anthropic's message: content blocks, their events, and why it ended."""

from collections.abc import Sequence

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.answer_formats.call_reader import Piece
from prolepsis.server.answering.chat_reader import ChatReader
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.anthropic.parse import MessagesBody
from prolepsis.server.dialects.dialect import Rendering, arguments_of
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta

_BLOCKS = {
    "content": ("text", "text_delta", "text"),
    "reasoning": ("thinking", "thinking_delta", "thinking"),
    "call": ("tool_use", "", ""),
    "arguments": ("tool_use", "input_json_delta", "partial_json"),
}
"""By kind of a piece: the type of its block, and the type and the field of its delta."""


class MessageRendering(Rendering):
    """Turns the deltas of one answer into blocks."""

    def __init__(self, body: MessagesBody, prepared: PreparedRequest) -> None:
        self._max_tokens = body.max_tokens
        self._prepared = prepared
        self._reader = ChatReader(prepared)
        self._blocks: list[dict[str, str]] = []
        """`type` and `text` of each, `id` and `name` of calls."""
        self._frame: Json = {"id": prepared.answer_id, "type": "message", "role": "assistant", "model": body.model}
        self._ending: Json = {"stop_reason": None, "stop_sequence": None}
        self._is_begun = False

    def take(self, delta: Delta) -> Sequence[Json]:
        events = [*self.opening()]
        for piece in self._reader.take(delta):
            events += self._piece(piece)
        if delta.finish_reason is not None:
            events += self._stop_block()
            reason, sequence = "tool_use" if self._reader.call_ids else "end_turn", None
            if delta.finish_reason == "content_filter":
                reason = "refusal"
            elif isinstance(delta.stop_reason, str):
                reason, sequence = "stop_sequence", delta.stop_reason
            elif delta.finish_reason == "length":
                is_full = delta.stop_reason is None and self._prepared.requests[0].params.max_tokens < self._max_tokens
                reason = "model_context_window_exceeded" if is_full else "max_tokens"
            self._ending = {"stop_reason": reason, "stop_sequence": sequence}
        return events

    def last(self, stats: RequestStats) -> Sequence[Json]:
        return [{"type": "message_delta", "delta": self._ending, "usage": _usage(stats)}, {"type": "message_stop"}]

    def whole(self, stats: RequestStats) -> Json:
        content = [self._shown(block, block["text"]) for block in self._blocks]
        return {**self._frame, "content": content, **self._ending, "usage": _usage(stats)}

    def opening(self) -> Sequence[Json]:
        if self._is_begun:
            return []
        self._is_begun = True
        usage = _usage(RequestStats(num_prompt_tokens=self._prepared.num_prompt_tokens))
        message: Json = {**self._frame, "content": [], **self._ending, "usage": usage}
        return [{"type": "message_start", "message": message}, {"type": "ping"}]

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        return [{"type": "ping"}]

    def _piece(self, piece: Piece) -> list[Json]:
        kind, delta, field = _BLOCKS[piece.kind]
        events = list[Json]()
        if piece.kind == "call" or not self._blocks or self._blocks[-1]["type"] != kind:
            block = {"type": kind, "text": ""}
            if piece.kind == "call":
                block |= {"id": self._reader.call_ids[piece.call].replace("call_", "toolu_", 1), "name": piece.text}
            events = self._stop_block()
            self._blocks.append(block)
            events.append(self._event("start", content_block=self._shown(block, "")))
        if piece.kind != "call":
            self._blocks[-1]["text"] += piece.text
            events.append(self._event("delta", delta={"type": delta, field: piece.text}))
        return events

    def _stop_block(self) -> list[Json]:
        if not self._blocks:
            return []
        signature = self._event("delta", delta={"type": "signature_delta", "signature": self._prepared.answer_id})
        return [*([signature] if self._blocks[-1]["type"] == "thinking" else []), self._event("stop")]

    def _event(self, what: str, **more: Json) -> Json:
        return {"type": f"content_block_{what}", "index": len(self._blocks) - 1, **more}

    def _shown(self, block: dict[str, str], text: str) -> Json:
        if block["type"] == "tool_use":
            return {"type": "tool_use", "id": block["id"], "name": block["name"], "input": arguments_of(text)}
        signature = {"signature": self._prepared.answer_id if text else ""} if block["type"] == "thinking" else {}
        return {"type": block["type"], block["type"]: text, **signature}


def _usage(stats: RequestStats) -> Json:
    """Every prefix is cached as it is read: nothing is counted for writing it."""
    return {
        "input_tokens": stats.num_prompt_tokens - stats.num_cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": stats.num_cached_tokens,
        "output_tokens": stats.num_output_tokens,
    }
