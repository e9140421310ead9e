"""vLLM's /v1/completions, which this server has too; it says what drafts brought if it was started with
`--per-request-spec-decode-metrics summary`."""

import json
from typing import Any

from prolepsis.adapters.upstream.api import Chunk, Json, UpstreamCall, by_position, finish_reason, sampling_fields
from prolepsis.core.events import TokenLogprobs
from prolepsis.core.stats import ProposerCounts

_GRAMMARS = {"json_schema": "json", "regex": "regex", "choice": "choice", "lark": "grammar"}
"""Fields of `structured_outputs` by kind of grammar."""


class VllmApi:
    path = "/v1/completions"

    def body(self, ask: UpstreamCall) -> Json:
        params = ask.params
        body: dict[str, Any] = {
            "model": ask.model,
            "prompt": list(ask.token_ids),
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,
            "max_tokens": params.max_tokens,
            "min_tokens": params.min_tokens,
            "seed": params.seed,
            "priority": ask.priority,
            **sampling_fields(params),
        }
        if params.logprobs is not None:
            body |= {"logprobs": params.logprobs, "return_tokens_as_token_ids": True}
        if ask.grammar is not None:
            kind, source = ask.grammar.kind, ask.grammar.source
            is_json = kind in ("json_schema", "choice")
            body["structured_outputs"] = {_GRAMMARS[kind]: json.loads(source) if is_json else source}
        if ask.cache_salt:
            body["cache_salt"] = ask.cache_salt
        return body

    def reader(self) -> "VllmReader":
        return VllmReader()


class VllmReader:
    def read(self, data: Json) -> Chunk:
        choices = data.get("choices") or []
        if not choices:  # the last one, with the figures of the request
            cached = ((data.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            return Chunk(drafts=_drafts(data), num_cached_tokens=cached)
        [choice] = choices
        return Chunk(
            token_ids=tuple(choice.get("token_ids") or ()),
            text=choice.get("text") or "",
            finish=finish_reason(choice.get("finish_reason")),
            logprobs=None if choice.get("logprobs") is None else _logprobs(choice["logprobs"]),
        )


def _logprobs(said: Json) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities of a chunk's tokens; vLLM's are of raw logits, as ours are."""
    tops: list[Json | None] = said.get("top_logprobs") or [None] * len(said["token_logprobs"])
    pairs = zip(said["token_logprobs"], tops, strict=True)
    return tuple(TokenLogprobs(logprob, _likeliest(top or {})) for logprob, top in pairs)


def _likeliest(top: Json) -> tuple[tuple[int, float], ...]:
    named = ((int(name.removeprefix("token_id:")), logprob) for name, logprob in top.items())
    return tuple(sorted(named, key=lambda pair: (-pair[1], pair[0])))


def _drafts(data: Json) -> ProposerCounts | None:
    figures = (data.get("metrics") or {}).get("speculative_decoding")
    if figures is None:
        return None
    lengths = figures.get("acceptance_histogram_by_draft_length")  # else all count as drafted as far as any may be
    histograms = [figures.get("acceptance_histogram") or ()] if lengths is None else lengths.values()
    num_drafts = figures["num_spec_steps"]
    positions = by_position(num_drafts, histograms)
    return ProposerCounts(num_drafts, figures["num_draft_tokens"], figures["num_accepted_draft_tokens"], positions)
