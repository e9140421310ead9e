"""The two answer shapes of OpenAI's completions API, streamed and whole: chat and text."""

from collections.abc import Callable, Sequence
from typing import Protocol

from prolepsis.server.admitted import Showing
from prolepsis.server.answer_parser import Piece
from prolepsis.server.chat_answers import ChatAnswer
from prolepsis.server.choices import Delta, ShownLogprobs, ShownToken

Json = dict[str, object]


class Format(Protocol):
    """How one endpoint shows the samples of one request; it follows each sample from its first delta on."""

    object: str
    chunk_object: str

    def chunk_choice(self, delta: Delta) -> Json | None:
        """Return the chunk's choice, or None where there is nothing to show yet."""

    def choice(self, deltas: Sequence[Delta]) -> Json:
        """Return one sample as a whole, from all its deltas."""

    @property
    def reasoning(self) -> str:
        """What was thought so far, over all samples."""


MakeFormat = Callable[[Showing], Format]


class ChatFormat:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, showing: Showing) -> None:
        self._showing = showing
        self._answers: dict[int, ChatAnswer] = {}
        self._reasoning: list[str] = []

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def chunk_choice(self, delta: Delta) -> Json | None:
        answer, pieces = self._take(delta)
        shown: Json = {"role": "assistant"} if delta.first else {}
        for kind, name in (("content", "content"), ("reasoning", "reasoning_content")):
            text = "".join(piece.text for piece in pieces if piece.kind == kind)
            if text or (delta.first and kind == "content"):
                shown[name] = text
        calls = _call_deltas(pieces, answer)
        if calls:
            shown["tool_calls"] = calls
        if not shown and delta.finish_reason is None and not (delta.logprobs or self._showing.token_ids):
            return None
        return {"index": delta.index, "delta": shown, **_chat_ending([delta], answer, self._showing)}

    def choice(self, deltas: Sequence[Delta]) -> Json:
        parts = [self._take(delta) for delta in deltas]
        answer = parts[-1][0]
        pieces = [piece for _, some in parts for piece in some]
        content = _text(pieces, "content")
        calls = [_whole_call(i, call_id, pieces) for i, call_id in enumerate(answer.call_ids)]
        message: Json = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        if reasoning := _text(pieces, "reasoning"):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        return {"index": deltas[-1].index, "message": message, **_chat_ending(deltas, answer, self._showing)}

    def _take(self, delta: Delta) -> tuple[ChatAnswer, Sequence[Piece]]:
        answer = self._answers.get(delta.index)
        if answer is None:
            answer = self._answers[delta.index] = ChatAnswer(self._showing)
        pieces = answer.take(delta)
        self._reasoning += [piece.text for piece in pieces if piece.kind == "reasoning"]
        return answer, pieces


class CompletionFormat:
    object = "text_completion"
    chunk_object = "text_completion"
    reasoning = ""

    def __init__(self, showing: Showing) -> None:
        self._showing = showing

    def chunk_choice(self, delta: Delta) -> Json | None:
        return self.choice([delta])

    def choice(self, deltas: Sequence[Delta]) -> Json:
        last = deltas[-1]
        shown: Json = {"index": last.index, "text": "".join(delta.text for delta in deltas)}
        shown |= {"logprobs": _completion_logprobs(deltas), "finish_reason": last.finish_reason}
        return {**shown, "stop_reason": last.stop_reason, **_token_ids(deltas, self._showing)}


def _text(pieces: Sequence[Piece], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def _call_deltas(pieces: Sequence[Piece], answer: ChatAnswer) -> list[Json]:
    """Return one delta a call: id and name where it begins, then arguments only."""
    deltas: dict[int, Json] = {}
    for piece in pieces:
        if piece.kind == "call":
            function: Json = {"name": piece.text, "arguments": ""}
            call_id = answer.call_ids[piece.call]
            deltas[piece.call] = {"index": piece.call, "id": call_id, "type": "function", "function": function}
        elif piece.kind == "arguments":
            known = deltas.setdefault(piece.call, {"index": piece.call, "function": {"arguments": ""}})
            function = known["function"]  # type: ignore[assignment]  # built above
            function["arguments"] = f"{function['arguments']}{piece.text}"
    return list(deltas.values())


def _whole_call(index: int, call_id: str, pieces: Sequence[Piece]) -> Json:
    mine = [piece for piece in pieces if piece.kind in ("call", "arguments") and piece.call == index]
    function = {"name": mine[0].text, "arguments": _text(mine, "arguments")}
    return {"id": call_id, "type": "function", "function": function}


def _chat_ending(deltas: Sequence[Delta], answer: ChatAnswer, showing: Showing) -> Json:
    last = deltas[-1]
    logprobs = None
    if last.logprobs is not None:
        content = [chat_logprobs(shown) for delta in deltas for shown in delta.logprobs or ()]
        logprobs = {"content": content, "refusal": None}
    ending: Json = {"logprobs": logprobs, "finish_reason": answer.finish_reason(last)}
    return {**ending, "stop_reason": last.stop_reason, **_token_ids(deltas, showing)}


def _token_ids(deltas: Sequence[Delta], showing: Showing) -> Json:
    return {"token_ids": [token for delta in deltas for token in delta.token_ids]} if showing.token_ids else {}


def chat_logprobs(shown: ShownLogprobs) -> Json:
    return {**_chat_token(shown.token), "top_logprobs": [_chat_token(token) for token in shown.top]}


def _chat_token(token: ShownToken) -> Json:
    """`bytes` is null where the token is part of a character, whose bytes its text cannot hold."""
    known = None if "\ufffd" in token.text else list(token.text.encode())
    return {"token": token.text, "logprob": token.logprob, "bytes": known}


def _completion_logprobs(deltas: Sequence[Delta]) -> Json | None:
    if deltas[-1].logprobs is None:
        return None
    all_shown = [shown for delta in deltas for shown in delta.logprobs or ()]
    return {
        "tokens": [shown.token.text for shown in all_shown],
        "token_logprobs": [shown.token.logprob for shown in all_shown],
        "top_logprobs": [{token.text: token.logprob for token in shown.top} for shown in all_shown],
        "text_offset": [shown.offset for shown in all_shown],
    }
