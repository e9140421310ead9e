"""The prompts of one HTTP request: admitted together or not at all, charged once, each with its own place."""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from msgspec import structs

from prolepsis.control.web.caller import Caller
from prolepsis.core.ended import Keep
from prolepsis.core.events import Event, Finished, Terminal, Tokens
from prolepsis.core.requests import WHOLE_VOCABULARY, GenerateRequest
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


_EDIT, _BIAS, _GRAMMAR, _LOGPROB, _LIKELIEST, _SHOWN = 0.03, 2e-6, 0.14, 0.1, 0.14, 0.005
"""In tokens, of 1 ms as in a full batch of the default model on one core: an edited row, each bias, a grammar's mask, a
log-probability, the search of the likeliest, each one's text."""
_MANY = 50_000
"""Tokens of a vocabulary of ordinary size."""


def processing_per_token(request: GenerateRequest) -> float:
    """Return what the request's own processing adds to each of its output tokens, in plain tokens."""
    params = request.params
    added = 0.0
    if params.logit_bias or params.allowed_token_ids or params.has_penalties:
        added += _EDIT + _BIAS * len(params.logit_bias)
    if request.grammar is not None:
        added += _GRAMMAR
    return added + _logprobs(params.logprobs)


def _logprobs(top: int | None) -> float:
    """Return what the log-probabilities of one token take; of all tokens, as if they were `_MANY`."""
    if top is None:
        return 0.0
    number = _MANY if top == WHOLE_VOCABULARY else top
    return _LOGPROB + (_LIKELIEST if number else 0.0) + _SHOWN * number


class Progress:
    """One prompt's request, and what the engine, or the response cache, has shown of its answer so far."""

    def __init__(
        self,
        request: GenerateRequest,
        *,
        stored: CachedAnswer | None = None,
        keep: Keep = Keep.FIGURES,
        cache_key: bytes | None = None,
    ) -> None:
        """`cache_key`: the key under which the answer may be stored."""
        self.request = request
        self.stored = stored
        self.keep = keep
        self.cache_key = cache_key
        self._processing = processing_per_token(request)
        self._of_prompt = len(request.prompt_token_ids) * _logprobs(request.params.prompt_logprobs)
        self.waited_s = 0.0
        self.num_tokens = 0
        self.answered = False
        """The engine took the request and its first event came."""
        self.kept: list[Tokens] = []
        self.ended: Terminal | None = None

    @property
    def finished(self) -> Finished | None:
        return self.ended if isinstance(self.ended, Finished) else None

    @property
    def cost(self) -> int:
        """Tokens it may take: prompt and longest answers; none if the answer is stored."""
        request = self.request
        return 0 if self.stored else len(request.prompt_token_ids) + request.n * request.params.max_tokens

    @property
    def num_used(self) -> int:
        """The tokens that count as used: prompt and answer so far; 0 if the request never ran."""
        return len(self.request.prompt_token_ids) + self.num_tokens if self.answered else 0

    @property
    def load(self) -> float:
        """Largest load on the engine, in plain tokens: `cost` and its own processing."""
        output = self._processing * self.request.n * self.request.params.max_tokens
        return self.cost + self._of_prompt + output

    @property
    def load_used(self) -> float:
        """Load so far; 0 if the request never ran."""
        return self.num_used + self._of_prompt * self.answered + self._processing * self.num_tokens

    def see(self, event: Event) -> None:
        """Take in an event; a stored answer uses no tokens."""
        if not isinstance(event, Tokens):
            self.ended = event
        if self.stored is not None:
            return
        self.answered = True
        if isinstance(event, Tokens):
            self.num_tokens += len(event.token_ids)
            if Keep.TOKENS in self.keep:
                self.kept.append(event)


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """All prompts of one caller's HTTP request."""

    caller: Caller
    items: Sequence[Progress]
    deadline_s: float | None
    is_client_deadline: bool = False

    @property
    def cost(self) -> int:
        return sum(item.cost for item in self.items)

    @property
    def num_used(self) -> int:
        return sum(item.num_used for item in self.items)

    @property
    def to_run(self) -> Sequence[Progress]:
        return [item for item in self.items if not item.stored]
