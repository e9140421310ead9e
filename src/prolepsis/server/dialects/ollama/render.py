"""An answer as Ollama's: a line a delta, and a last one with its counts and times."""

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.stats import RequestStats
from prolepsis.server.answering.chat_reader import ChatReader
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.dialect import Rendering, arguments_of
from prolepsis.server.dialects.ollama.parse import OllamaBody
from prolepsis.server.openai.formats import chat_logprobs
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta


class OllamaRendering(Rendering):
    """Turns the deltas of one answer into lines."""

    def __init__(self, body: OllamaBody, prepared: PreparedRequest, place: Callable[[Json], Json]) -> None:
        """`place` puts text, thinking and calls where the endpoint has them."""
        self._model = body.model
        self._place = place
        self._reader = ChatReader(prepared)
        self._calls: list[dict[str, str]] = []
        """`id`, `name` and `arguments`; they go out whole, at the end."""
        self._texts = {"content": "", "reasoning": ""}
        self._logprobs: list[Json] | None = None
        self._reason: str | None = None

    def take(self, delta: Delta) -> Sequence[Json]:
        """Return a line, or none where there is nothing to show yet."""
        shown = {"content": "", "reasoning": ""}
        for piece in self._reader.take(delta):
            if piece.kind == "call":
                call_id = self._reader.call_ids[piece.call]
                self._calls.append({"id": call_id, "name": piece.text, "arguments": ""})
            elif piece.kind == "arguments":
                self._calls[piece.call]["arguments"] += piece.text
            else:
                shown[piece.kind] += piece.text
                self._texts[piece.kind] += piece.text
        logprobs = None if delta.logprobs is None else [chat_logprobs(token) for token in delta.logprobs]
        if logprobs is not None:
            self._logprobs = [*(self._logprobs or ()), *logprobs]
        calls = self._whole_calls() if delta.finish_reason is not None else []
        self._reason = delta.finish_reason
        if not (calls or logprobs or any(shown.values())):
            return []
        return [{**self._line(shown, calls, logprobs), "done": False}]

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        """Return a line without text: clients read each line as JSON."""
        return [{**self._line({"content": "", "reasoning": ""}, [], None), "done": False}]

    def last(self, stats: RequestStats) -> Sequence[Json]:
        return [{**self._line({"content": "", "reasoning": ""}, [], None), **self._end(stats)}]

    def whole(self, stats: RequestStats) -> Json:
        return {**self._line(self._texts, self._whole_calls(), self._logprobs), **self._end(stats)}

    def _whole_calls(self) -> list[Json]:
        functions = [
            {"index": index, "name": call["name"], "arguments": arguments_of(call["arguments"])}
            for index, call in enumerate(self._calls)
        ]
        return [{"id": call["id"], "function": function} for call, function in zip(self._calls, functions, strict=True)]

    def _line(self, texts: dict[str, str], calls: list[Json], logprobs: list[Json] | None) -> Json:
        shown: Json = {"content": texts["content"]}
        if texts["reasoning"]:
            shown["thinking"] = texts["reasoning"]
        if calls:
            shown["tool_calls"] = calls
        more: Json = {} if logprobs is None else {"logprobs": logprobs}
        return {"model": self._model, "created_at": shown_time(time.time()), **self._place(shown), **more}

    def _end(self, stats: RequestStats) -> Json:
        first = stats.first_token_s or stats.queue_s
        return {
            "done": True,
            "done_reason": self._reason,
            "total_duration": _ns(stats.waited_s + stats.total_s),
            "load_duration": 0,
            "prompt_eval_count": stats.num_prompt_tokens,
            "prompt_eval_duration": _ns(first - stats.queue_s),
            "eval_count": stats.num_output_tokens,
            "eval_duration": _ns(stats.total_s - first),
        }


def loaded(body: OllamaBody, shown: Json) -> Json:
    """Return the reply to a request without a question, which only loads the model or lets it go."""
    reason = "unload" if body.keep_alive in (0, "0", "0s") else "load"
    return {"model": body.model, "created_at": shown_time(time.time()), **shown, "done": True, "done_reason": reason}


def shown_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
