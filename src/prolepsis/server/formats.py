"""The two answer shapes of OpenAI's API, streamed and whole: chat completions and text completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from prolepsis.core.events import FinishReason
from prolepsis.server.choices import Delta, ShownLogprobs, ShownToken

Json = dict[str, object]


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample as a whole: its deltas put together."""

    index: int
    text: str
    logprobs: tuple[ShownLogprobs, ...] | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None


def put_together(deltas: Sequence[Delta]) -> Answer:
    """Join the deltas of one sample, the last of which finishes it."""
    last = deltas[-1]
    logprobs = None
    if last.logprobs is not None:
        logprobs = tuple(shown for delta in deltas for shown in delta.logprobs or ())
    text = "".join(delta.text for delta in deltas)
    return Answer(last.index, text, logprobs, last.finish_reason, last.stop_reason)


class Format(Protocol):
    """How one endpoint shows a sample."""

    @property
    def object(self) -> str: ...

    @property
    def chunk_object(self) -> str: ...

    def chunk_choice(self, delta: Delta) -> Json: ...

    def choice(self, answer: Answer) -> Json: ...


class ChatFormat:
    object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def chunk_choice(self, delta: Delta) -> Json:
        shown: Json = {"role": "assistant"} if delta.first else {}
        if delta.first or delta.text:
            shown["content"] = delta.text
        return {"index": delta.index, "delta": shown, **_chat_ending(delta)}

    def choice(self, answer: Answer) -> Json:
        message = {"role": "assistant", "content": answer.text, "refusal": None}
        return {"index": answer.index, "message": message, **_chat_ending(answer)}


class CompletionFormat:
    object = "text_completion"
    chunk_object = "text_completion"

    def chunk_choice(self, delta: Delta) -> Json:
        return {"index": delta.index, "text": delta.text, **_completion_ending(delta)}

    def choice(self, answer: Answer) -> Json:
        return {"index": answer.index, "text": answer.text, **_completion_ending(answer)}


def _chat_ending(part: Delta | Answer) -> Json:
    logprobs = None
    if part.logprobs is not None:
        logprobs = {"content": [_chat_logprobs(shown) for shown in part.logprobs], "refusal": None}
    return {"logprobs": logprobs, "finish_reason": part.finish_reason, "stop_reason": part.stop_reason}


def _chat_logprobs(shown: ShownLogprobs) -> Json:
    return {**_chat_token(shown.token), "top_logprobs": [_chat_token(token) for token in shown.top]}


def _chat_token(token: ShownToken) -> Json:
    """`bytes` is null where the token is part of a character, whose bytes its text cannot hold."""
    known = None if "\ufffd" in token.text else list(token.text.encode())
    return {"token": token.text, "logprob": token.logprob, "bytes": known}


def _completion_ending(part: Delta | Answer) -> Json:
    logprobs: Json | None = None
    if part.logprobs is not None:
        logprobs = {
            "tokens": [shown.token.text for shown in part.logprobs],
            "token_logprobs": [shown.token.logprob for shown in part.logprobs],
            "top_logprobs": [{token.text: token.logprob for token in shown.top} for shown in part.logprobs],
            "text_offset": [shown.offset for shown in part.logprobs],
        }
    return {"logprobs": logprobs, "finish_reason": part.finish_reason, "stop_reason": part.stop_reason}
