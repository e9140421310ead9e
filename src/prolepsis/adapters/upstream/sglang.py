"""SGLang's /generate: its OpenAI routes say no token ids, and nothing of drafts."""

from typing import Any

from prolepsis.adapters.upstream.api import (
    Chunk,
    Json,
    UpstreamCall,
    UpstreamFault,
    by_position,
    finish_reason,
    sampling_fields,
)
from prolepsis.adapters.upstream.reading import LINE_BYTES
from prolepsis.core.stats import ProposerCounts

_DRAFTED = ("spec_num_proposed_drafts", "spec_draft_token_num")
_ACCEPTED = ("spec_num_correct_drafts", "spec_accept_token_num")
_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Names in `meta_info`, the newest first."""


class SglangApi:
    path = "/generate"

    def body(self, ask: UpstreamCall) -> Json:
        params = ask.params
        sampling: dict[str, Any] = {
            "max_new_tokens": params.max_tokens,
            "min_new_tokens": params.min_tokens,
            "sampling_seed": params.seed,
            **sampling_fields(params),
            "top_k": params.top_k or -1,
        }
        if ask.grammar is not None:
            sampling[ask.grammar.kind] = ask.grammar.source
        body: dict[str, Any] = {
            "input_ids": list(ask.token_ids),
            "sampling_params": sampling,
            "stream": True,
            "priority": -ask.priority,  # SGLang serves the highest first
        }
        if ask.cache_salt:
            body["extra_key"] = ask.cache_salt
        return body

    def reader(self) -> "SglangReader":
        return SglangReader()


class SglangReader:
    """A chunk has all tokens so far, or with `--incremental-streaming-output` the new ones."""

    def __init__(self) -> None:
        self._num_tokens = 0
        self._text = ""

    def read(self, data: Json) -> Chunk:
        meta = data.get("meta_info") or {}
        reason = meta.get("finish_reason")
        if reason is not None and reason["type"] == "abort":
            raise UpstreamFault(f"gave it up: {reason.get('message')}")
        num_new = meta.get("completion_tokens", 0) - self._num_tokens
        self._num_tokens += num_new
        return Chunk(
            token_ids=tuple(data.get("output_ids") or ())[-num_new:] if num_new > 0 else (),
            text=self._new_text(data.get("text") or ""),
            finish=finish_reason(reason["type"] if reason is not None else None),
            drafts=_drafts(meta) if reason is not None else None,
            num_cached_tokens=meta.get("cached_tokens") or 0,
        )

    def _new_text(self, text: str) -> str:
        new = text.removeprefix(self._text)
        self._text = text if text.startswith(self._text) else self._text + text
        if len(self._text) > LINE_BYTES:
            raise ValueError(f"more than {LINE_BYTES} characters")
        return new


def _drafts(meta: Json) -> ProposerCounts | None:
    drafted, accepted, histogram = (
        next((meta[name] for name in names if name in meta), None) for names in (_DRAFTED, _ACCEPTED, _HISTOGRAM)
    )
    if drafted is None or accepted is None:
        return None
    if histogram and len(histogram) == 1:  # it ends at the most accepted tokens of a draft: none were
        histogram = [*histogram, 0]
    num_drafts = meta["spec_verify_ct"]
    return ProposerCounts(num_drafts, drafted, accepted, by_position(num_drafts, [histogram or ()]))
