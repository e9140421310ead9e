"""Requests with an `Idempotency-Key`: a retry gets the first attempt's answer, and 409 while that attempt runs."""

import math
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from prometheus_client import CollectorRegistry
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prolepsis.control.store.records import RequestRetry
from prolepsis.control.web.caller import caller_of
from prolepsis.control.web.errors import RequestAborted, RequestRefused
from prolepsis.control.web.feature import Feature
from prolepsis.control.web.fields import Body
from prolepsis.control.web.refusals import too_many_kept
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import InvalidParameter
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.server.admission.controller import was_charged
from prolepsis.server.answering.stream import PING, never
from prolepsis.server.front.tracing import ANSWER_ID, FAILED, HTTP_REQUEST_ID, TRACE
from prolepsis.server.preparing.prepared import SPEC_MODE

KEY_HEADER = "idempotency-key"
REPLAYED_HEADER = "idempotency-replayed"
KEY_SCHEMA: Mapping[str, object] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
_BYTES_OF_ANSWER, _BYTES_OF_PART = 2000, 100
"""Estimates, on the high side, of what CPython needs besides the bytes of the answer."""
_LONGEST_WAIT_S = 60

Attend = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, eq=False, kw_only=True)
class RecordedReply:
    """One attempt's reply so far."""

    tenant: str
    key: str
    fingerprint: bytes
    began: float
    state: Mapping[str, object]
    expires: float | None = None  # clock reading (seconds); None while the attempt runs
    error: Exception | None = None
    status: int | None = None
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    num_bytes: int = _BYTES_OF_ANSWER
    is_outgrown: bool = False  # the parts took more than the room and are dropped

    def is_expired(self, now: float) -> bool:
        return self.expires is not None and self.expires <= now

    def replayed(self) -> Response:
        """Return the whole reply once more, or raise the error that ended the attempt."""
        if self.error is not None:
            raise self.error.with_traceback(None)
        assert self.status is not None, "an attempt ends with a reply or an error"
        reply = Response(b"".join(self.parts), self.status)
        reply.raw_headers = [*self.headers, (REPLAYED_HEADER.encode(), b"true")]
        return reply


class Answers:
    """Answers by tenant and key, with running totals of their bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, dict[str, RecordedReply]] = {}
        self._bytes_of: dict[str, int] = {}

    def __iter__(self) -> Iterator[RecordedReply]:
        """Yield all answers; they may be removed meanwhile."""
        return iter([answer for answers in self._by_tenant.values() for answer in answers.values()])

    def of(self, tenant: str) -> Mapping[str, RecordedReply]:
        return self._by_tenant.get(tenant, {})

    def bytes_of(self, tenant: str) -> int:
        return self._bytes_of.get(tenant, 0)

    def is_full_for(self, tenant: str) -> bool:
        """Return whether there is no room, and the tenant has its share of it."""
        num_tenants = len(self._by_tenant) + (tenant not in self._by_tenant)
        return self.num_bytes >= self._max_bytes and self.bytes_of(tenant) >= self._max_bytes / num_tenants

    def add(self, answer: RecordedReply) -> None:
        """Add an answer, in place of an earlier one with its key."""
        if (earlier := self.of(answer.tenant).get(answer.key)) is not None:
            self.remove(earlier)
        self._by_tenant.setdefault(answer.tenant, {})[answer.key] = answer
        self._count(answer.tenant, answer.num_bytes)

    def remove(self, answer: RecordedReply) -> None:
        answers = self._by_tenant[answer.tenant]
        del answers[answer.key]
        self._count(answer.tenant, -answer.num_bytes)
        if not answers:
            del self._by_tenant[answer.tenant], self._bytes_of[answer.tenant]

    def take(self, answer: RecordedReply, message: Message) -> None:
        """Keep the next message of a running reply (ASGI); a reply that outgrows the room loses its parts."""
        if message["type"] == "http.response.start":
            answer.status, answer.headers = message["status"], list(message["headers"])
            return
        if answer.is_outgrown or not (part := message.get("body", b"")):
            return
        answer.parts.append(part)
        self._grow(answer, len(part) + _BYTES_OF_PART)
        if self.is_full_for(answer.tenant):
            answer.is_outgrown = True
            answer.parts.clear()
            self._grow(answer, _BYTES_OF_ANSWER - answer.num_bytes)

    def _grow(self, answer: RecordedReply, num_bytes: int) -> None:
        answer.num_bytes += num_bytes
        self._count(answer.tenant, num_bytes)

    def _count(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes_of[tenant] = self.bytes_of(tenant) + num_bytes


class Idempotency(Feature):
    """Keeps answers by tenant and key for `idempotency_ttl_s` after their end. Belongs to one event loop.

    An attempt continues without its client, which may come back for the answer. An attempt that ends without a charge
    is not kept. Where the answers take `idempotency_bytes`, tenants with more than their share of them get no further
    ones, and of an answer that is running then only the key is kept.
    """

    name = "idempotency"
    period_s = 1.0

    def __init__(
        self,
        config: ServerConfig,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
        *,
        retried: Callable[[RequestRetry], None] = lambda retry: None,
    ) -> None:
        """`retried` is called with each retry that gets the answer of a first attempt."""
        self._ttl_s = config.idempotency_ttl_s
        self._max_bytes = config.idempotency_bytes
        self._retried = retried
        self._clock = clock
        self.answers = Answers(self._max_bytes)
        text = "Requests with an Idempotency-Key: first, retry, running (a retry before the first has ended), refused"
        self._requests = counter(registry, "idempotent_requests", text, "result")
        self._bytes = gauge(registry, "idempotent_answer_bytes", "Estimated size of the answers kept for retries")

    async def once(self, request: Request, body: Body, attend: Attend) -> Response:
        """Return the response of `attend`, or the first attempt's response to a key that was seen before.

        Raises `InvalidParameter` for a key that is not allowed, `RequestRefused` where the key was given with another
        request, the first attempt still runs, there is no room or the answer outgrew it, and the error of the first
        attempt.
        """
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return await attend(request)
        if not re.fullmatch(str(KEY_SCHEMA["pattern"]), key):
            message = f"Idempotency-Key is {key[:64]!r}; allowed: 1 to 255 visible ASCII characters"
            raise InvalidParameter(message, param="Idempotency-Key")
        tenant, fingerprint, now = caller_of(request).tenant, _fingerprint(request, body), self._clock()
        first = self.answers.of(tenant).get(key)
        if first is not None and not first.is_expired(now):
            if first.fingerprint != fingerprint:
                message = (
                    "This Idempotency-Key was given with another request; allowed: the same request, or another key."
                )
                raise RequestRefused(message, code="idempotency_key_reused", param="Idempotency-Key")
            if first.expires is None:
                self._requests.labels("running").inc()
                raise _still_running(first.key, self._clock() - first.began)
            self._requests.labels("retry").inc()
            if first.is_outgrown:
                raise _not_kept(self._max_bytes)
            self._name(request, first)
            return first.replayed()
        if self.answers.is_full_for(tenant):
            ends = (kept.expires for kept in self.answers.of(tenant).values() if kept.expires is not None)
            self._requests.labels("refused").inc()
            raise too_many_kept(self._max_bytes, max(1.0, next(ends, 0.0) - now))
        self._requests.labels("first").inc()
        state = request.scope["state"]
        answer = RecordedReply(tenant=tenant, key=key, fingerprint=fingerprint, began=now, state=state)
        self.answers.add(answer)
        return await self._attempt(answer, Request(request.scope, never), attend)

    async def tick(self) -> None:
        now = self._clock()
        for answer in self.answers:
            if answer.is_expired(now):
                self.answers.remove(answer)
        self._bytes.set(self.answers.num_bytes)

    async def _attempt(self, answer: RecordedReply, request: Request, attend: Attend) -> Response:
        """Attend to a request that never learns that its client has left."""
        ended = partial(self._ended, answer, request)
        try:
            return _Kept(await attend(request), partial(self.answers.take, answer), ended)
        except BaseException as error:
            answer.error = error if isinstance(error, Exception) else RequestAborted("The request was aborted.")
            ended()
            raise

    def _ended(self, answer: RecordedReply, request: Request) -> None:
        """Keep the answer for retries if it was given or charged."""
        answer.expires = self._clock() + self._ttl_s
        is_given = answer.status == 200 and not request.scope["state"].get(FAILED)
        if not is_given and not was_charged(request):
            self.answers.remove(answer)

    def _name(self, retry: Request, answer: RecordedReply) -> None:
        """Record the retry's ids as aliases of the first request."""
        first, own = answer.state, retry.scope["state"]
        if (answer_id := first.get(ANSWER_ID)) is None:  # refused before it had one
            return
        own[ANSWER_ID] = answer_id
        trace = own[TRACE].trace_id if TRACE in own else None
        self._retried(
            RequestRetry(
                answer_id=str(answer_id),
                http_request_id=own[HTTP_REQUEST_ID],
                trace_id=trace,
                tenant=caller_of(retry).tenant,
            )
        )


class _Kept(Response):
    """A reply that is kept as it is sent; it goes on to its end if its client leaves."""

    def __init__(self, response: Response, take: Callable[[Message], None], ended: Callable[[], None]) -> None:
        super().__init__()
        self._response = response
        self._take = take
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def take_and_send(message: Message) -> None:
            if not message.get(PING):
                self._take(message)
            with suppress(ClientDisconnect):
                await send(message)

        try:
            await self._response(scope, never, take_and_send)
        finally:
            self._ended()


def _fingerprint(request: Request, body: Body) -> bytes:
    """Return what makes two requests the same: route, body, and the header that changes what is done."""
    parts = (request.scope["path"], request.headers.get(SPEC_MODE), body.model_dump_json(exclude_unset=True))
    return sha256(repr(parts).encode()).digest()


def _still_running(key: str, running_s: float) -> RequestRefused:
    """Return the refusal of a retry; the wait grows with the time that the first attempt has taken."""
    wait_s = min(_LONGEST_WAIT_S, max(1, math.ceil(running_s)))
    message = (
        f"The first request with the Idempotency-Key {key[:64]!r} has been running for {running_s:.1f} s. "
        f"Send the same request again in {wait_s} s: once the first has ended, a retry gets its answer."
    )
    headers = {"retry-after": str(wait_s)}
    return RequestRefused(message, code="idempotency_key_in_use", param="Idempotency-Key", status=409, headers=headers)


def _not_kept(max_bytes: int) -> RequestRefused:
    message = (
        "The first request with this Idempotency-Key was served, and its answer outgrew the room for answers "
        f"({max_bytes} bytes, idempotency_bytes); allowed: another key, which generates another answer."
    )
    return RequestRefused(
        message,
        code="idempotent_answer_not_kept",
        param="Idempotency-Key",
        status=409,
        headers={"x-should-retry": "false"},
    )
