"""The two answer shapes of OpenAI's completions API, streamed and whole: chat and text."""

from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Protocol

from prolepsis.engine.text.answer_formats.call_reader import Piece
from prolepsis.server.answering.chat_reader import ChatReader
from prolepsis.server.answering.usage import Json
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta
from prolepsis.server.text.shown_tokens import ShownToken


class Format(Protocol):
    """Format of one endpoint for the samples of one request; it follows each sample from its first delta on."""

    object: str
    chunk_object: str

    def chunk_choice(self, delta: Delta) -> Json | None:
        """Return the chunk's choice, or None where there is nothing to show yet."""

    def choice(self, deltas: Sequence[Delta]) -> Json:
        """Return one sample as a whole, from all its deltas."""

    def opening(self) -> Sequence[Json]:
        """Return the choices of chunks before the first delta, if those do not begin the answer."""
        return ()

    @property
    def reasoning(self) -> str:
        """Reasoning so far, over all samples."""


OF_PROMPT = ("prompt_token_ids", "prompt_logprobs")
"""Null in whole answers where they are not asked for, as vLLM's clients expect, and left out of chunks."""
MakeFormat = Callable[[PreparedRequest], Format]


class ChatFormat:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared
        self._answers: dict[int, ChatReader] = {}
        self._reasoning: list[str] = []
        self._is_open = False
        """The chunks that say who speaks are out."""

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def chunk_choice(self, delta: Delta) -> Json | None:
        answer, pieces = self._take(delta)
        is_first = delta.first and not self._is_open
        shown: Json = {"role": "assistant"} if is_first else {}
        for kind, name in (("content", "content"), ("reasoning", "reasoning_content")):
            text = _text(pieces, kind)
            if is_first and kind == "content":
                text = self._prepared.echoed + text
            if text or (is_first and kind == "content"):
                shown[name] = text
        # one delta a call: id and name where it begins, then arguments only
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
        calls = list(deltas.values())
        if calls:
            shown["tool_calls"] = calls
        if not shown and delta.finish_reason is None and not (delta.logprobs or self._shows_tokens):
            return None
        return {"index": delta.index, "delta": shown, **_chat_ending([delta], answer, self._prepared)}

    def opening(self) -> Sequence[Json]:
        self._is_open = True
        message = {"role": "assistant", "content": self._prepared.echoed}
        said: Json = {"delta": message, "logprobs": None, "finish_reason": None}
        return [{"index": index, **said} for index in range(self._prepared.num_choices)]

    @property
    def _shows_tokens(self) -> bool:
        body = self._prepared.body
        return bool(body.return_token_ids or (body.speculation and body.speculation.origins))

    def choice(self, deltas: Sequence[Delta]) -> Json:
        parts = [self._take(delta) for delta in deltas]
        answer = parts[-1][0]
        pieces = [piece for _, some in parts for piece in some]
        content = self._prepared.echoed + _text(pieces, "content")
        calls = [_whole_call(i, call_id, pieces) for i, call_id in enumerate(answer.call_ids)]
        message: Json = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        if reasoning := _text(pieces, "reasoning"):
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        choice: Json = {"index": deltas[-1].index, "message": message, "token_ids": None}
        return {**choice, **_chat_ending(deltas, answer, self._prepared)}

    def _take(self, delta: Delta) -> tuple[ChatReader, Sequence[Piece]]:
        answer = self._answers.get(delta.index)
        if answer is None:
            answer = self._answers[delta.index] = ChatReader(self._prepared)
        pieces = answer.take(delta)
        self._reasoning += [piece.text for piece in pieces if piece.kind == "reasoning"]
        return answer, pieces


class CompletionFormat(Format):
    object = "text_completion"
    chunk_object = "text_completion"
    reasoning = ""

    def __init__(self, prepared: PreparedRequest) -> None:
        self._prepared = prepared

    def chunk_choice(self, delta: Delta) -> Json | None:
        return self._shown([delta])

    def choice(self, deltas: Sequence[Delta]) -> Json:
        shown = self._shown(deltas)
        return {**shown, **{name: None for name in ("token_ids", *OF_PROMPT) if name not in shown}}

    def _shown(self, deltas: Sequence[Delta]) -> Json:
        last = deltas[-1]
        prompt = deltas[0].prompt if deltas[0].first else None
        before = (prompt.text,) if prompt is not None else ()
        shown: Json = {"index": last.index, "text": "".join((*before, *(delta.text for delta in deltas)))}
        logprobs = None
        if last.logprobs is not None:
            echoed = prompt.tokens if prompt is not None and self._prepared.echoes else ()
            tokens = [*echoed, *(token for delta in deltas for token in delta.logprobs or ())]
            logprobs = _completion_logprobs(tokens, as_ids=bool(self._prepared.body.return_tokens_as_token_ids))
        shown |= {"logprobs": logprobs, "finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
        if self._prepared.body.return_token_ids and deltas[0].first:
            prepared = self._prepared
            shown["prompt_token_ids"] = prepared.requests[last.index // prepared.requests[0].n].prompt_token_ids
        return {**shown, **_tokens(deltas, self._prepared), **prompt_logprobs(deltas[0], self._prepared)}


def _text(pieces: Sequence[Piece], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def _whole_call(index: int, call_id: str, pieces: Sequence[Piece]) -> Json:
    mine = [piece for piece in pieces if piece.kind in ("call", "arguments") and piece.call == index]
    function = {"name": mine[0].text, "arguments": _text(mine, "arguments")}
    return {"id": call_id, "type": "function", "function": function}


def _chat_ending(deltas: Sequence[Delta], answer: ChatReader, prepared: PreparedRequest) -> Json:
    last = deltas[-1]
    logprobs = None
    if last.logprobs is not None:
        as_ids = bool(prepared.body.return_tokens_as_token_ids)
        content = [chat_logprobs(shown, as_ids=as_ids) for delta in deltas for shown in delta.logprobs or ()]
        logprobs = {"content": content, "refusal": None}
    ending: Json = {"logprobs": logprobs, "finish_reason": answer.finish_reason(last)}
    return {**ending, "stop_reason": last.stop_reason, **_tokens(deltas, prepared)}


def _tokens(deltas: Sequence[Delta], prepared: PreparedRequest) -> Json:
    ids = [token for delta in deltas for token in delta.token_ids]
    return {**({"token_ids": ids} if prepared.body.return_token_ids else {}), **_origins(deltas, prepared)}


def _origins(deltas: Sequence[Delta], prepared: PreparedRequest) -> Json:
    """Return the text as it was generated, marks of calls included, in pieces of one origin; none: the target's own."""
    speculation = prepared.body.speculation
    if speculation is None or not speculation.origins:
        return {}
    tokens = [(token.by, token.text) for delta in deltas for token in delta.tokens] or [("", d.text) for d in deltas]
    runs = groupby(tokens, key=itemgetter(0))
    pieces = ((by, "".join(text for _, text in run)) for by, run in runs)
    return {"origins": [{"text": text, "drafted_by": by or None} for by, text in pieces if text]}


def chat_logprobs(shown: ShownToken, *, as_ids: bool = False) -> Json:
    top = [_chat_token(token, as_ids=as_ids) for token in shown.top]
    return {**_chat_token(shown, as_ids=as_ids), "top_logprobs": top}


def _chat_token(token: ShownToken, *, as_ids: bool) -> Json:
    return {"token": _name(token, as_ids=as_ids), "logprob": token.logprob, "bytes": list(token.raw)}


def _name(token: ShownToken, *, as_ids: bool) -> str:
    return f"token_id:{token.token_id}" if as_ids else token.text


def prompt_logprobs(first: Delta, prepared: PreparedRequest) -> Json:
    """Return the log-probabilities of the prompt by token id, where they are asked for, with a sample's first delta."""
    if prepared.body.prompt_logprobs is None or first.prompt is None or not first.first:
        return {}
    shown: list[Json | None] = []
    for token in first.prompt.tokens:
        places = {
            str(likely.token_id): {"logprob": likely.logprob, "rank": likely.rank, "decoded_token": likely.text}
            for likely in (token, *token.top)
        }
        shown.append(None if token.logprob is None else dict(places))
    return {"prompt_logprobs": shown}


def _completion_logprobs(all_shown: Sequence[ShownToken], *, as_ids: bool) -> Json:
    return {
        "tokens": [_name(shown, as_ids=as_ids) for shown in all_shown],
        "token_logprobs": [shown.logprob for shown in all_shown],
        "top_logprobs": [_top_by_name(shown, as_ids=as_ids) for shown in all_shown],
        "text_offset": [shown.offset for shown in all_shown],
    }


def _top_by_name(emitted: ShownToken, *, as_ids: bool) -> Json | None:
    """The emitted token and the likeliest ones; of tokens with equal texts the emitted or else the likeliest."""
    if emitted.logprob is None:
        return None
    top: Json = {_name(emitted, as_ids=as_ids): emitted.logprob}
    for token in emitted.top:
        top.setdefault(_name(token, as_ids=as_ids), token.logprob)
    return top
