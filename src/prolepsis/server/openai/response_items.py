"""The output items of a /v1/responses answer as it grows, and their typed events."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from jiter import from_json

from prolepsis.engine.text.answer_formats.call_reader import Piece, is_json_object
from prolepsis.server.answering.chat_reader import ChatReader
from prolepsis.server.answering.usage import Json
from prolepsis.server.openai.formats import chat_logprobs
from prolepsis.server.openai.response_tools import NamedCall
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta

_ITEM_OF = {"content": "message", "reasoning": "reasoning", "call": "function_call", "arguments": "function_call"}
CUSTOM = "custom_tool_call"
NO_CALL = NamedCall("")
_CALLS = ("function_call", CUSTOM)
_PREFIXES = {"message": "msg", "reasoning": "rs", CUSTOM: "ctc"}


def item_id(kind: str) -> str:
    return f"{_PREFIXES.get(kind, 'fc')}_{uuid4().hex}"


@dataclass(slots=True)
class _OpenItem:
    """The item being written."""

    kind: str
    item_id: str
    index: int
    called: NamedCall = NO_CALL
    call_id: str = ""
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)

    def shown(self, status: str) -> Json:
        item: Json = {"id": self.item_id, "type": self.kind, "status": status}
        parts = [] if status == "in_progress" else [self.part()]
        if self.kind == "message":
            return {**item, "role": "assistant", "content": parts}
        if self.kind == "reasoning":
            return {**item, "summary": [], "content": parts}
        space: Json = {"namespace": self.called.namespace} if self.called.namespace else {}
        what: Json = {"input": self.input} if self.kind == CUSTOM else {"arguments": self.text}
        return {**item, "call_id": self.call_id, "name": self.called.name, **space, **what}

    def part(self) -> Json:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    @property
    def input(self) -> str:
        """The text for a custom tool, as far as the arguments of its function have it."""
        try:
            value = from_json(self.text.encode() or b"{}", partial_mode="trailing-strings")
        except ValueError:  # it is no call of the form that the function has
            return self.text
        return str(value.get("input", "")) if isinstance(value, dict) else self.text

    @property
    def place(self) -> Json:
        return {"item_id": self.item_id, "output_index": self.index}


class ResponseItems:
    """Turns one sample's deltas into items; `output` holds those that are complete."""

    def __init__(self, prepared: PreparedRequest, tools: Iterable[NamedCall]) -> None:
        self.output: list[Json] = []
        self.cut: str | None = None
        """What cut the answer, as `incomplete_details` say it; None: it is whole, or goes on."""
        self.reasoning = ""
        self._named = {named.function: named for named in tools}
        self._answer = ChatReader(prepared)
        self._open: _OpenItem | None = None
        self._logprobs: list[Json] = []

    def take(self, delta: Delta) -> list[Json]:
        """Return the events of `delta`, without their sequence numbers."""
        self._logprobs += [chat_logprobs(shown) for shown in delta.logprobs or ()]
        events: list[Json] = []
        for piece in self._answer.take(delta):
            kind = _ITEM_OF[piece.kind]
            if piece.kind == "call" and self._called(piece).is_custom:
                kind = CUSTOM
            elif piece.kind == "arguments" and self._open is not None:
                kind = self._open.kind
            if self._open is None or self._open.kind != kind or piece.kind == "call":
                events += [*self._end("completed"), *self._begin(kind, piece)]
            if piece.kind != "call":
                events += self._grow(piece.text)
        if delta.finish_reason is not None:
            self.cut = _cut(delta)
            if not self.output and self._open is None:
                events += self._begin("message")
            events += self._end("incomplete" if self.cut else "completed")
        return events

    def _called(self, piece: Piece) -> NamedCall:
        return self._named.get(piece.text) or NamedCall(piece.text)

    def _begin(self, kind: str, piece: Piece | None = None) -> list[Json]:
        opened = self._open = _OpenItem(kind, item_id(kind), len(self.output))
        if piece is not None and piece.kind == "call":
            opened.called, opened.call_id = self._called(piece), self._answer.call_ids[piece.call]
        added: Json = {"output_index": opened.index, "item": opened.shown("in_progress")}
        events: list[Json] = [{"type": "response.output_item.added", **added}]
        if kind not in _CALLS:
            part = {**opened.place, "content_index": 0, "part": opened.part()}
            events.append({"type": "response.content_part.added", **part})
        return events

    def _grow(self, text: str) -> list[Json]:
        opened = self._open
        assert opened is not None, "an item is begun before it grows"
        opened.text += text
        if opened.kind == CUSTOM:  # its text is complete when the arguments are
            return []
        if opened.kind == "function_call":
            return [{"type": "response.function_call_arguments.delta", **opened.place, "delta": text}]
        event: Json = {**opened.place, "content_index": 0, "delta": text}
        if opened.kind == "reasoning":
            self.reasoning += text
            return [{"type": "response.reasoning_text.delta", **event}]
        logprobs, self._logprobs = self._logprobs, []
        opened.logprobs = [*opened.logprobs, *logprobs]
        return [{"type": "response.output_text.delta", **event, "logprobs": logprobs}]

    def _end(self, status: str) -> list[Json]:
        opened, self._open = self._open, None
        if opened is None:
            return []
        if opened.kind in _CALLS:  # others may be whole although the answer is not, and the other way around
            status = "completed" if is_json_object(opened.text) else "incomplete"
        item = opened.shown(status)
        self.output.append(item)
        events = _done_events(opened)
        done: Json = {"output_index": opened.index, "item": item}
        return [*events, {"type": "response.output_item.done", **done}]


def _cut(last: Delta) -> str | None:
    """`stop`: a stop string or stop token came where a call or the form asked for was not whole."""
    if last.finish_reason == "length":
        return "max_output_tokens" if last.stop_reason is None else "stop"
    return None if last.finish_reason == "stop" else last.finish_reason


def _done_events(opened: _OpenItem) -> Sequence[Json]:
    if opened.kind == CUSTOM:
        kind, text = "response.custom_tool_call_input", opened.input
        grown: Json = {"type": f"{kind}.delta", **opened.place, "delta": text}
        return [*([grown] if text else []), {"type": f"{kind}.done", **opened.place, "input": text}]
    if opened.kind == "function_call":
        done: Json = {**opened.place, "name": opened.called.name, "arguments": opened.text}
        return [{"type": "response.function_call_arguments.done", **done}]
    place: Json = {**opened.place, "content_index": 0}
    whole: Json = {"type": "response.reasoning_text.done", **place, "text": opened.text}
    if opened.kind == "message":
        whole = {**whole, "type": "response.output_text.done", "logprobs": opened.logprobs}
    return [whole, {"type": "response.content_part.done", **place, "part": opened.part()}]
