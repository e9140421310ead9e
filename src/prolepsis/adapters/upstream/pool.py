"""A pool of upstream engines behind one URL: whether it answers, what it serves, and streams of its tokens."""

import asyncio
import json
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2
import structlog
from prometheus_client.parser import text_string_to_metric_families

from prolepsis.adapters.upstream.api import Api, Chunk, UpstreamCall, UpstreamFault, UpstreamMalformed, error_message
from prolepsis.adapters.upstream.metrics import DRAFT_COUNTERS
from prolepsis.adapters.upstream.reading import METRICS_BYTES, chunks_of, start_of
from prolepsis.adapters.upstream.route import PoolName
from prolepsis.core.bounded_replies import PLAIN
from prolepsis.core.errors import InvalidParameter, VocabularyMismatch
from prolepsis.core.requests import SamplingParams
from prolepsis.engine.text.tokenizer import Tokenizer

CONNECT_S = 5.0
CHECK_S = 30.0
"""For all that is read when a pool is checked."""
_CHECKED_TEXT = "Once upon a time"
_CHECKED_TOKENS = 8
_MOST_CHECKED = 64
"""Chunks of its answer that are read."""
_BUSY = (429, 503)
_CALLERS_FAULT = (400, 413, 422)

log = structlog.get_logger(__name__)


class PoolLost(Exception):
    """The pool does not answer, or broke off."""


class PoolFault(PoolLost):
    """The pool said that it failed at this request: the next one may go well."""


class PoolMalformed(PoolFault):
    """The pool said what its API does not."""


class PoolBusy(Exception):
    """The pool takes no new requests now."""


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """What a pool serves."""

    model: str  # the name that it has there
    max_model_len: int


class SharedTime:
    """Splits the time in which a pool has requests of ours equally among them, moment by moment.

    The shares add up to the time in which it had any. What others take of the pool is not known.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.num_requests = 0
        self._clock = clock
        self._share = 0.0
        self._at = clock()

    def enter(self) -> float:
        """One more request begins; return the reading at its begin."""
        share = self.read()
        self.num_requests += 1
        return share

    def read(self) -> float:
        """Return the reading now; a request's share is the difference of two readings, in seconds."""
        now = self._clock()
        if self.num_requests:
            self._share += (now - self._at) / self.num_requests
        self._at = now
        return self._share

    def leave(self) -> float:
        """A request ends; return the reading at its end."""
        share = self.read()
        self.num_requests -= 1
        return share


class Pool:
    """One URL. It is up after a check that passed, until it fails; belongs to one event loop, but for `check`."""

    def __init__(
        self,
        name: PoolName,
        url: str,
        api: Api,
        tokenizer: Tokenizer,
        *,
        headers: Mapping[str, str],
        silent_s: float | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`silent_s`: a stream that says nothing for so many seconds is lost; None: never."""
        self.name: PoolName = name
        self.url = url.rstrip("/")
        self.facts: PoolFacts | None = None
        """None: it is down."""
        self.detail = "not checked yet"
        """Why it is down."""
        self.time = SharedTime(clock)
        self._api = api
        self._tokenizer = tokenizer
        self._headers = {**headers, **PLAIN}
        self.silent_s = silent_s
        self._http = self._client(silent_s)

    @property
    def is_up(self) -> bool:
        return self.facts is not None

    def up(self, facts: PoolFacts) -> None:
        log.info("upstream_up", pool=self.name, url=self.url, model=facts.model)
        self.facts, self.detail = facts, ""

    def down(self, detail: str) -> None:
        if self.is_up:
            log.warning("upstream_down", pool=self.name, url=self.url, detail=detail)
        self.facts, self.detail = None, detail

    def check(self) -> PoolFacts:
        """Ask what is served, and for a short answer; blocks, and changes nothing.

        Raises `PoolLost`, and `VocabularyMismatch` if the answer's token ids do not spell its text.
        """
        return asyncio.run(self._checked())

    async def _checked(self) -> PoolFacts:
        try:
            async with asyncio.timeout(CHECK_S), self._client(CHECK_S) as http:
                async with http.stream("GET", f"{self.url}/v1/models") as listed:
                    body = await start_of(listed)
                if listed.status_code != httpx2.codes.OK:
                    raise _refusal(listed.status_code, body)
                facts = _facts(body)
                await self._check_vocabulary(http, facts)
        except TimeoutError as error:
            raise PoolLost(f"does not answer within {CHECK_S:g} s") from error
        except (httpx2.HTTPError, UpstreamFault) as error:
            raise PoolLost(_reason_of(error)) from error
        except (InvalidParameter, PoolBusy) as error:
            raise PoolLost(str(error)) from error
        return facts

    def _client(self, read_s: float | None) -> httpx2.AsyncClient:
        """Return a client that keeps no cookies; what an engine sets would go with the requests of others."""
        timeout = httpx2.Timeout(CONNECT_S, read=read_s)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=64)
        none = CookieJar(DefaultCookiePolicy(allowed_domains=()))
        return httpx2.AsyncClient(headers=self._headers, timeout=timeout, limits=limits, cookies=none)

    async def stream(self, ask: UpstreamCall) -> AsyncGenerator[Chunk, None]:
        """Yield what the pool says; closing it early ends the request there.

        Raises `PoolLost`, `PoolBusy`, and `InvalidParameter` with the words of an engine that refuses the request.
        """
        reader, url = self._api.reader(), f"{self.url}{self._api.path}"
        try:
            async with self._http.stream("POST", url, json=self._api.body(ask)) as response:
                if response.status_code != httpx2.codes.OK:
                    raise _refusal(response.status_code, await start_of(response))
                async with aclosing(chunks_of(response, reader)) as chunks:
                    async for chunk in chunks:
                        yield chunk
        except UpstreamMalformed as error:
            raise PoolMalformed(str(error)) from error
        except UpstreamFault as error:
            raise PoolFault(str(error)) from error
        except httpx2.HTTPError as error:
            raise PoolLost(_reason_of(error)) from error

    async def is_alive(self) -> bool:
        """Ask for the pool's health."""
        try:
            async with asyncio.timeout(CONNECT_S), self._http.stream("GET", f"{self.url}/health") as response:
                return response.is_success
        except (httpx2.HTTPError, TimeoutError):
            return False

    async def draft_totals(self) -> dict[str, float]:
        """Return the totals of `DRAFT_COUNTERS` that the pool's own metrics have; empty without any."""
        try:
            async with asyncio.timeout(CONNECT_S), self._http.stream("GET", f"{self.url}/metrics") as response:
                text = await start_of(response, METRICS_BYTES) if response.is_success else b""
            return await asyncio.to_thread(_draft_totals, text)
        except (httpx2.HTTPError, TimeoutError, UpstreamFault, ValueError):
            return {}

    async def close(self) -> None:
        await self._http.aclose()

    async def _check_vocabulary(self, http: httpx2.AsyncClient, facts: PoolFacts) -> None:
        reader = self._api.reader()
        params = SamplingParams(temperature=0.0, max_tokens=_CHECKED_TOKENS, ignore_eos=True)
        ask = UpstreamCall(facts.model, tuple(self._tokenizer.encode(_CHECKED_TEXT)), params)
        chunks: list[Chunk] = []
        async with http.stream("POST", f"{self.url}{self._api.path}", json=self._api.body(ask)) as response:
            if response.status_code != httpx2.codes.OK:
                raise _refusal(response.status_code, await start_of(response))
            async with aclosing(chunks_of(response, reader)) as said:
                async for chunk in said:
                    chunks.append(chunk)
                    if len(chunks) == _MOST_CHECKED:
                        break
        token_ids = [token for chunk in chunks for token in chunk.token_ids]
        if not token_ids:
            raise UpstreamFault("says no token ids: it is of another kind than upstream.api says, or too old")
        theirs, ours = "".join(chunk.text for chunk in chunks), self._tokenizer.decode(token_ids)
        # but for spaces around them and a character at the end that is not whole
        their_text, our_text = (text.rstrip("\ufffd").strip() for text in (theirs, ours))
        if not (their_text.startswith(our_text) or our_text.startswith(their_text)):
            message = f"{self.url} writes {theirs!r} for token ids that are {ours!r} with the model's tokenizer here"
            raise VocabularyMismatch(message)


def _refusal(status: int, body: bytes) -> Exception:
    """Return what a reply that is no stream says."""
    try:
        message = error_message(json.loads(body))
    except (ValueError, AttributeError, RecursionError):
        message = body[:200].decode(errors="replace")
    reason = f"answered {status}: {message}"
    if status in _BUSY:
        return PoolBusy(reason)
    if status in _CALLERS_FAULT:
        return InvalidParameter(f"the upstream engine refuses the request: {message}")
    return PoolLost(reason)


def _draft_totals(text: bytes) -> dict[str, float]:
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text.decode(errors="replace")):
        for sample in family.samples:
            name = DRAFT_COUNTERS.get(sample.name)
            if name is not None and math.isfinite(sample.value):
                totals[name] = totals.get(name, 0.0) + sample.value
    return totals


def _facts(body: bytes) -> PoolFacts:
    """Return the first model of a list; the field of its context differs between engines."""
    try:
        model = json.loads(body)["data"][0]
        length = model.get("max_model_len") or model["meta"]["n_ctx"]
        return PoolFacts(str(model["id"]).encode().decode(), int(length))
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UpstreamMalformed("lists no model with its context at /v1/models") from error


def _reason_of(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip() if isinstance(error, httpx2.HTTPError) else str(error)
