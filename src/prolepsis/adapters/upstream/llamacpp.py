"""llama.cpp's /completion: its OpenAI routes say no token ids.

A stream says the last token of a character only: where it takes several tokens, the ids of the first ones are missing
(`tokens_predicted` counts them). They are made from the character's text, as the tokenizer writes it: the text is the
engine's, and the ids are those of its usual spelling.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any

from prolepsis.adapters.upstream.api import Chunk, Json, UpstreamCall, UpstreamMalformed
from prolepsis.core.stats import ProposerCounts

Encode = Callable[[str], Sequence[int]]
"""Text to token ids, with none around them."""

_SEEDS = 2**31
_SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""In the order in which our own sampler applies them; the engine's default has the temperature last."""


class LlamacppApi:
    path = "/completion"

    def __init__(self, encode: Encode) -> None:
        self._encode = encode

    def body(self, ask: UpstreamCall) -> Json:
        params = ask.params
        body: dict[str, Any] = {
            "prompt": list(ask.token_ids),
            "stream": True,
            "return_tokens": True,
            "n_predict": params.max_tokens,
            "samplers": list(_SAMPLERS),
            "temperature": params.temperature,
            "top_k": params.top_k,
            "top_p": params.nucleus,
            "min_p": params.min_p,
            "repeat_penalty": params.repetition_penalty,
            "repeat_last_n": len(ask.token_ids) + params.max_tokens,
            "stop": list(params.stop),
            "ignore_eos": params.ignore_eos,
            "seed": params.seed % _SEEDS,
            "cache_prompt": not ask.cache_salt,
        }
        if params.logit_bias:
            body["logit_bias"] = [[token, bias] for token, bias in params.logit_bias]
        if ask.grammar is not None:
            body["json_schema"] = json.loads(ask.grammar.source)
        return body

    def reader(self) -> "LlamacppReader":
        return LlamacppReader(self._encode)


class LlamacppReader:
    def __init__(self, encode: Encode) -> None:
        self._encode = encode
        self._num_tokens = 0

    def read(self, data: Json) -> Chunk:
        said, text = tuple(data.get("tokens") or ()), data.get("content") or ""
        timings = data.get("timings") or {}
        ended = bool(data.get("stop"))
        # tokens are said, and not in how many drafts; nothing is said where there were none
        counts = ProposerCounts(
            num_draft_tokens=timings.get("draft_n", 0), num_accepted=timings.get("draft_n_accepted", 0)
        )
        tokens = said if ended else self._whole(said, text, data.get("tokens_predicted", 0))
        return Chunk(
            token_ids=tokens,
            text=text,
            finish=None if not ended else "length" if data.get("stop_type") == "limit" else "stop",
            drafts=counts if ended else None,
            num_cached_tokens=timings.get("cache_n", 0) if ended else 0,
        )

    def _whole(self, said: tuple[int, ...], text: str, num_tokens: int) -> tuple[int, ...]:
        """Return the tokens of a chunk after which the engine has emitted `num_tokens`."""
        missing = num_tokens - self._num_tokens - len(said)
        self._num_tokens = num_tokens
        if missing <= 0:
            return said
        tokens = tuple(self._encode(text))
        if not tokens:
            raise UpstreamMalformed(f"left out {missing} tokens without text")
        return tokens
