"""Stored answers of deterministic requests, as the engine's own events, so that a hit goes out like any answer."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from msgspec import structs

from prolepsis.core.events import Finished, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import EffectiveMode, RequestStats

_BYTES_OF_ANSWER, _BYTES_OF_TOKEN, _BYTES_OF_LOGPROB = 1000, 40, 120
"""Estimates, on the high side, of what CPython needs."""


@dataclass(frozen=True, slots=True)
class CachedAnswer:
    """All events of a finished request; the request id in them belongs to the first request."""

    tokens: tuple[Tokens, ...]
    stats: RequestStats
    expires: float
    size: int


class ResponseCache:
    """Least recently used answers go first where `max_bytes` are full; 0 stores nothing."""

    def __init__(self, max_bytes: int, ttl_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._ttl_s = ttl_s
        self._clock = clock
        self._answers: OrderedDict[bytes, CachedAnswer] = OrderedDict()

    def get(self, key: bytes) -> CachedAnswer | None:
        answer = self._answers.get(key)
        if answer is None:
            return None
        if answer.expires <= self._clock():
            self._remove(key)
            return None
        self._answers.move_to_end(key)
        return answer

    def put(self, key: bytes, tokens: Sequence[Tokens], stats: RequestStats) -> None:
        size = _BYTES_OF_ANSWER + sum(_size(event) for event in tokens)
        if size > self.max_bytes:
            return
        if key in self._answers:
            self._remove(key)
        kept = tuple(event if event.proposed is None else structs.replace(event, proposed=None) for event in tokens)
        self._answers[key] = CachedAnswer(kept, stats, self._clock() + self._ttl_s, size)
        self.num_bytes += size
        while self.num_bytes > self.max_bytes:
            self._remove(next(iter(self._answers)))

    def _remove(self, key: bytes) -> None:
        self.num_bytes -= self._answers.pop(key).size


def cache_key(request: GenerateRequest, tenant: str, fingerprint: str) -> bytes:
    """Return what makes an answer the same: model, prompt and sampling, and for whom it may be seen.

    `scope` carries tenant and `cache_salt`; the tenant is named once more, so that no scope can stand for another's.
    """
    params = replace(request.params, seed=0) if request.params.greedy else request.params
    parts = (fingerprint, tenant, request.cache_salt, request.prompt_token_ids, request.n, params, request.grammar)
    return sha256(repr((*parts, request.prediction_token_ids)).encode()).digest()


def replayed(answer: CachedAnswer, request_id: str) -> list[Tokens | Finished]:
    """Return the events of a stored answer for another request; its stats say that nothing was computed."""
    stats = RequestStats(
        num_prompt_tokens=answer.stats.num_prompt_tokens,
        num_cached_tokens=answer.stats.num_prompt_tokens,
        num_output_tokens=answer.stats.num_output_tokens,
        prediction_accepted=answer.stats.prediction_accepted,
        prediction_rejected=answer.stats.prediction_rejected,
        first_token_s=0.0,
        mode=EffectiveMode("off", "response_cache", answer.stats.mode.plan_version),
    )
    events = (structs.replace(event, request_id=request_id, accepted_by=()) for event in answer.tokens)
    return [*events, Finished(request_id, stats)]


def _size(event: Tokens) -> int:
    logprobs = sum(1 + len(token.top) for token in (*(event.logprobs or ()), *(event.prompt_logprobs or ())))
    return 200 + _BYTES_OF_TOKEN * len(event.token_ids) + _BYTES_OF_LOGPROB * logprobs
