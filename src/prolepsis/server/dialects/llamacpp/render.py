"""An answer as llama.cpp's: an event a delta, and a last one with what is known of the whole."""

import time
from collections.abc import Sequence

from prolepsis.core.engine_client import PromptProgress
from prolepsis.core.requests import shaping
from prolepsis.core.stats import RequestStats
from prolepsis.engine.text.tokenizer import Tokenizer
from prolepsis.server.answering.usage import Json
from prolepsis.server.dialects.dialect import Rendering
from prolepsis.server.dialects.llamacpp.parse import LlamaCppBody
from prolepsis.server.preparing.prepared import PreparedRequest
from prolepsis.server.text.deltas import Delta
from prolepsis.server.text.shown_tokens import ShownToken


class LlamaCppRendering(Rendering):
    """Turns the deltas of one answer into events."""

    def __init__(self, body: LlamaCppBody, prepared: PreparedRequest, tokenizer: Tokenizer) -> None:
        self.shows_progress = body.return_progress
        self._began_at = time.monotonic()
        self._body = body
        self._request = prepared.requests[0]
        self._tokenizer = tokenizer
        self._text = ""
        self._token_ids: list[int] = []
        self._probs: list[Json] = []
        self._stop_type, self._stopping_word = "none", ""

    def take(self, delta: Delta) -> Sequence[Json]:
        """Return an event, or none where there is nothing to show; an answer of no tokens shows nothing."""
        if delta.finish_reason is not None:
            is_word = isinstance(delta.stop_reason, str) and delta.finish_reason != "content_filter"
            self._stop_type = "word" if is_word else "eos" if delta.finish_reason == "stop" else "limit"
            self._stopping_word = str(delta.stop_reason) if is_word else ""
        if self._body.n_predict == 0:
            return []
        self._text += delta.text
        self._token_ids += delta.token_ids
        probs = [
            {**_token(token), "top_logprobs": [_token(top) for top in token.top]} for token in delta.logprobs or ()
        ]
        self._probs += probs
        if not (delta.text or delta.token_ids):
            return []
        shown: Json = {"index": 0, "content": delta.text, "tokens": delta.token_ids, "stop": False}
        counts: Json = {
            "tokens_predicted": len(self._token_ids),
            "tokens_evaluated": len(self._request.prompt_token_ids),
        }
        return [{**shown, **counts, **({"completion_probabilities": probs} if probs else {})}]

    def silence(self, progress: PromptProgress | None) -> Sequence[Json]:
        """Return a delta without text where the progress is asked for."""
        if not self.shows_progress or progress is None:
            return []
        shown: Json = {"index": 0, "content": "", "tokens": [], "stop": False, "tokens_predicted": 0}
        ms = round(1000 * (time.monotonic() - self._began_at))
        read: Json = {"total": progress.num_tokens, "cache": progress.num_cached, "processed": progress.num_read}
        return [{**shown, "tokens_evaluated": progress.num_read, "prompt_progress": {**read, "time_ms": ms}}]

    def last(self, stats: RequestStats) -> Sequence[Json]:
        return [_selected(self._end("", (), stats), self._body.response_fields)]

    def whole(self, stats: RequestStats) -> Json:
        reply = self._end(self._text, self._token_ids if self._body.return_tokens else (), stats)
        probabilities = {"completion_probabilities": self._probs} if self._probs else {}
        return _selected({**reply, **probabilities}, self._body.response_fields)

    def _end(self, content: str, tokens: Sequence[int], stats: RequestStats) -> Json:
        prompt = self._tokenizer.decode(self._request.prompt_token_ids, skip_special_tokens=False)
        return {
            "index": 0,
            "content": content,
            "tokens": tokens,
            "stop": True,
            "model": self._body.model,
            "tokens_predicted": len(self._token_ids),
            "tokens_evaluated": stats.num_prompt_tokens,
            "generation_settings": self._settings(),
            "prompt": prompt,
            "has_new_line": "\n" in self._text,
            "truncated": False,
            "stop_type": self._stop_type,
            "stopping_word": self._stopping_word,
            "tokens_cached": stats.num_cached_tokens,
            "timings": _timings(stats, len(self._token_ids)),
        }

    def _settings(self) -> Json:
        params = self._request.params
        return {
            **shaping(params, as_llamacpp=True),
            "seed": params.seed,
            "ignore_eos": params.ignore_eos,
            "n_predict": self._body.n_predict,
            "max_tokens": params.max_tokens,
            "stop": params.stop,
            "n_probs": params.logprobs or 0,
            "grammar": self._body.grammar or "",
            "stream": bool(self._body.stream),
        }


def _selected(reply: Json, paths: Sequence[str] | None) -> Json:
    """Return the values at `paths` under the whole path, as llama.cpp does; all fields where there are no paths."""
    inner = ((name, part) for name, part in reply.items() if isinstance(part, dict))
    values = {**reply, **{f"{name}/{key}": value for name, part in inner for key, value in part.items()}}
    return {path: values[path] for path in paths if path in values} if paths else reply


def _token(token: ShownToken) -> Json:
    return {"id": token.token_id, "token": token.text, "bytes": list(token.raw), "logprob": token.logprob}


def _timings(stats: RequestStats, num_tokens: int) -> Json:
    first = stats.first_token_s or stats.total_s
    drafted: Json = {"draft_n": stats.num_draft_tokens, "draft_n_accepted": stats.num_accepted}
    return {
        "cache_n": stats.num_cached_tokens,
        **_pace("prompt", stats.num_prompt_tokens - stats.num_cached_tokens, first - stats.queue_s),
        **_pace("predicted", num_tokens, stats.total_s - first),
        **(drafted if stats.num_draft_tokens else {}),
    }


def _pace(name: str, number: int, seconds: float) -> Json:
    return {
        f"{name}_n": number,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / number if number else 0.0,
        f"{name}_per_second": number / seconds if seconds > 0 else 0.0,
    }
