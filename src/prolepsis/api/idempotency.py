"""Requests with an `Idempotency-Key`: a retry gets the answer of the first attempt, running or finished."""

import asyncio
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from hashlib import sha256

from prometheus_client import CollectorRegistry
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prolepsis.api.admission.controller import was_charged
from prolepsis.api.openai.prepared import SPEC_MODE
from prolepsis.api.stream import ClientDisconnected, until_disconnect
from prolepsis.api.tracing import ANSWER_ID, HTTP_REQUEST_ID, TRACE
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import InvalidParameter
from prolepsis.store.retries import RequestRetry
from prolepsis.telemetry.declare import counter, gauge
from prolepsis.web.caller import caller_of
from prolepsis.web.errors import RequestAborted, RequestRefused
from prolepsis.web.feature import Feature
from prolepsis.web.fields import Body
from prolepsis.web.refusals import too_many_kept

KEY_HEADER = "idempotency-key"
REPLAYED_HEADER = "idempotency-replayed"
KEY_SCHEMA: Mapping[str, object] = {"type": "string", "pattern": r"^[\x21-\x7e]{1,255}$"}
_BYTES_OF_ANSWER, _BYTES_OF_PART = 2000, 100
"""Estimates, on the high side, of what CPython needs besides the bytes of the answer."""
UNREAD_BYTES = 2**20
"""Of an answer that has outgrown its room: most that is kept for a client that reads slower than it comes."""

Attend = Callable[[Request], Awaitable[Response]]


@dataclass(slots=True, eq=False)
class _Place:
    """Position up to which a client has read."""

    position: int = 0
    is_lost: bool = False
    """What comes next for it is forgotten: it was too far behind."""


class Answer:
    """One attempt's reply as it goes out; any number of clients read it from its start, until it outgrows its room."""

    def __init__(self, fingerprint: bytes, on_growth: Callable[[int], None]) -> None:
        """`on_growth` is told of the bytes of each part as it comes, and of those forgotten as a negative number."""
        self.fingerprint = fingerprint
        self.num_bytes = _BYTES_OF_ANSWER
        self._on_growth = on_growth
        self.task: asyncio.Task[None] | None = None
        self.expires: float | None = None
        """Clock reading (seconds); None: it has not ended."""
        self.error: Exception | None = None
        """Error with which the attempt was refused or failed before its reply."""
        self.state: Mapping[str, object] = {}
        """What is known of the first request, as far as it has come."""
        self.status: int | None = None
        """The reply's; None before it has one."""
        self.is_outgrown = False
        """No further client may read it: it is forgotten as far as those that read it have got."""
        self._messages: deque[Message] = deque()
        self._num_forgotten = 0
        self._most_unread = UNREAD_BYTES
        self._places: list[_Place] = []
        """Reading positions of its clients."""
        self._whole = False
        self._changed = asyncio.Event()

    async def send(self, message: Message) -> None:
        """Take the next message of the reply (ASGI)."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        self._messages.append(message)
        self._grow(_num_bytes(message))
        self._forget()
        self._whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.changed()

    def changed(self) -> None:
        """Wake up the readers."""
        self._changed.set()
        self._changed = asyncio.Event()

    def outgrow(self) -> None:
        """Keep no more of it than those that read it still need, up to a limit from which on the slow lose it."""
        self.is_outgrown = True
        self._most_unread = max(UNREAD_BYTES, self.num_bytes)  # one that began to read late may be fast
        self._forget()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield the reply's messages, those to come included.

        Raises what the attempt failed with, and `ClientDisconnected` where they came much faster than they were taken.
        """
        assert not self.is_outgrown, "its beginning may be forgotten"
        place = _Place()
        self._places.append(place)
        try:
            while True:
                while not place.is_lost and place.position < self._num_forgotten + len(self._messages):
                    message = self._messages[place.position - self._num_forgotten]
                    place.position += 1
                    self._forget()
                    yield message
                if place.is_lost:
                    raise ClientDisconnected
                if self._whole:
                    return
                if self.error is not None:
                    raise self.error.with_traceback(None)
                await self._changed.wait()
        finally:
            self._places.remove(place)
            self._forget()

    def _forget(self) -> None:
        if not self.is_outgrown:
            return
        end = self._num_forgotten + len(self._messages)
        needed = min((place.position for place in self._places if not place.is_lost), default=end)
        while self._num_forgotten < needed:
            self._forget_first()
        if self._messages and self.num_bytes - _num_bytes(self._messages[-1]) > self._most_unread:
            for place in self._places:
                place.is_lost |= place.position == self._num_forgotten
            self._forget()

    def _forget_first(self) -> None:
        self._num_forgotten += 1
        self._grow(-_num_bytes(self._messages.popleft()))

    def _grow(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._on_growth(num_bytes)


class Answers:
    """Answers by tenant and key, with running totals of what they take; one that grows beyond the room is outgrown."""

    def __init__(self, max_bytes: int) -> None:
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._by_tenant: dict[str, dict[str, Answer]] = {}
        self._bytes_of: dict[str, int] = {}

    def __iter__(self) -> Iterator[tuple[str, str, Answer]]:
        """Yield (tenant, key, answer) of all; they may be removed meanwhile."""
        found = [(tenant, key, one) for tenant, answers in self._by_tenant.items() for key, one in answers.items()]
        return iter(found)

    def of(self, tenant: str) -> Mapping[str, Answer]:
        return self._by_tenant.get(tenant, {})

    def bytes_of(self, tenant: str) -> int:
        return self._bytes_of.get(tenant, 0)

    def is_full_for(self, tenant: str) -> bool:
        """Return whether there is no room, and the tenant has its share of it."""
        num_tenants = len(self._by_tenant) + (tenant not in self._by_tenant)
        return self.num_bytes >= self._max_bytes and self.bytes_of(tenant) >= self._max_bytes / num_tenants

    def add(self, tenant: str, key: str, fingerprint: bytes) -> Answer:
        """Begin an answer, in place of an earlier one."""
        if (earlier := self.of(tenant).get(key)) is not None:
            self.remove(tenant, key, earlier)
        answer = Answer(fingerprint, lambda growth: self._grow(tenant, key, answer, growth))
        self._by_tenant.setdefault(tenant, {})[key] = answer
        self._count(tenant, answer.num_bytes)
        return answer

    def remove(self, tenant: str, key: str, answer: Answer) -> None:
        """Forget an answer; one that is not here any more changes nothing."""
        if self.of(tenant).get(key) is not answer:
            return
        del self._by_tenant[tenant][key]
        self._count(tenant, -answer.num_bytes)
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant], self._bytes_of[tenant]

    def _grow(self, tenant: str, key: str, answer: Answer, growth: int) -> None:
        if self.of(tenant).get(key) is not answer:
            return
        self._count(tenant, growth)
        if not answer.is_outgrown and self.is_full_for(tenant):
            answer.outgrow()

    def _count(self, tenant: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes_of[tenant] = self.bytes_of(tenant) + num_bytes


class Idempotency(Feature):
    """Keeps answers by tenant and key while they run and for `idempotency_ttl_s` after. Belongs to one event loop.

    An attempt continues without its client, which may come back for it. One that ends without a charge is not kept.
    Where the answers take `idempotency_bytes`, tenants with more than their share of them get no further ones, and of
    an answer that is running then only the key is kept.
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
        """`retried` is told of each retry that gets the answer of a first attempt."""
        self._ttl_s = config.idempotency_ttl_s
        self._max_bytes = config.idempotency_bytes
        self._retried = retried
        self._clock = clock
        self.answers = Answers(self._max_bytes)
        self._requests = counter(registry, "idempotent_requests", "Requests with an Idempotency-Key", "result")
        self._bytes = gauge(registry, "idempotent_answer_bytes", "Estimated size of the answers")

    async def once(self, request: Request, body: Body, attend: Attend) -> Response:
        """Return the response of `attend`, or with a key that was seen before that of the first attempt.

        Raises `InvalidParameter` for a key that is not allowed, `RequestRefused` where the key was given with another
        request, there is no room or the answer outgrew it, and what the first attempt raised before its reply.
        """
        key = request.headers.get(KEY_HEADER)
        if key is None:
            return await attend(request)
        if not re.fullmatch(str(KEY_SCHEMA["pattern"]), key):
            message = f"Idempotency-Key is {key[:64]!r}; allowed: 1 to 255 visible ASCII characters"
            raise InvalidParameter(message, param="Idempotency-Key")
        tenant, asked = caller_of(request).tenant, _fingerprint(request, body)
        answer = self._find(tenant, key)
        self._requests.labels("first" if answer is None else "retry").inc()
        if answer is None:
            return await _Reading.begun(self._attempt(tenant, key, asked, request, attend), replayed=False)
        if answer.fingerprint != asked:
            message = "This Idempotency-Key was given with another request; allowed: the same request, or another key."
            raise RequestRefused(message, code="idempotency_key_reused", param="Idempotency-Key")
        if answer.is_outgrown:
            message = (
                "The first request with this Idempotency-Key was served, and its answer outgrew the room for answers "
                f"({self._max_bytes} bytes, idempotency_bytes); allowed: another key, which generates another answer."
            )
            raise RequestRefused(message, code="idempotent_answer_not_kept", param="Idempotency-Key", status=409)
        try:
            return await _Reading.begun(answer, replayed=True)
        finally:
            self._name(request, answer)

    def _name(self, retry: Request, answer: Answer) -> None:
        """Have log line and store find the first request by the names of a retry."""
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

    async def tick(self) -> None:
        """Forget what has expired."""
        now = self._clock()
        for tenant, key, answer in self.answers:
            if _expired(answer, now):
                self.answers.remove(tenant, key, answer)
        self._bytes.set(self.answers.num_bytes)

    async def close(self) -> None:
        """End the attempts that still run; the server ends."""
        tasks = [answer.task for _, _, answer in self.answers if answer.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, tenant: str, key: str) -> Answer | None:
        answer = self.answers.of(tenant).get(key)
        return None if answer is None or _expired(answer, self._clock()) else answer

    def _attempt(self, tenant: str, key: str, asked: bytes, request: Request, attend: Attend) -> Answer:
        self._check_room(tenant)
        answer = self.answers.add(tenant, key, asked)
        answer.state = request.scope["state"]
        answer.task = asyncio.create_task(self._run(answer, request, attend))
        answer.task.add_done_callback(lambda _: self._ended(tenant, key, answer, kept=_is_kept(answer, request)))
        return answer

    async def _run(self, answer: Answer, request: Request, attend: Attend) -> None:
        """Attend to the request as if its client stayed."""
        detached = Request(request.scope, _never)
        try:
            response = await attend(detached)
            await response(request.scope, _never, answer.send)
        except asyncio.CancelledError:
            answer.error = RequestAborted("The request was aborted: shutdown.")
            raise
        except Exception as error:  # handed on to those who wait for the reply
            answer.error = error
        finally:
            answer.changed()

    def _ended(self, tenant: str, key: str, answer: Answer, *, kept: bool) -> None:
        answer.task = None
        answer.expires = self._clock() + self._ttl_s
        if not kept:
            self.answers.remove(tenant, key, answer)

    def _check_room(self, tenant: str) -> None:
        if not self.answers.is_full_for(tenant):
            return
        oldest = next((one.expires for one in self.answers.of(tenant).values() if one.expires is not None), 0.0)
        wait_s = max(1.0, oldest - self._clock())
        self._requests.labels("refused").inc()
        raise too_many_kept(self._max_bytes, wait_s)


class _Reading(Response):
    """The reply of an attempt, as one of its clients gets it."""

    def __init__(self, messages: AsyncGenerator[Message, None], first: Message, *, replayed: bool) -> None:
        super().__init__()
        self._messages = messages
        self._first = first
        self._replayed = replayed

    @classmethod
    async def begun(cls, answer: Answer, *, replayed: bool) -> "_Reading":
        """Return it once the reply begins; raises what the attempt was refused with."""
        messages = answer.messages()
        return cls(messages, await anext(messages), replayed=replayed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnected):
            await until_disconnect(receive, self._write(send))

    async def _write(self, send: Send) -> None:
        start = {**self._first, "headers": list(self._first["headers"])}
        if self._replayed:
            MutableHeaders(scope=start)[REPLAYED_HEADER] = "true"
        async with aclosing(self._messages) as messages:
            await send(start)
            async for message in messages:
                await send(message)


def _fingerprint(request: Request, body: Body) -> bytes:
    """Return what makes two requests the same: route, body, and the header that changes what is done."""
    parts = (request.scope["path"], request.headers.get(SPEC_MODE), body.model_dump_json(exclude_unset=True))
    return sha256(repr(parts).encode()).digest()


def _is_kept(answer: Answer, request: Request) -> bool:
    """Return whether a retry gets this answer: also a failure, if something was charged for it."""
    return answer.status == 200 or was_charged(request)


def _num_bytes(message: Message) -> int:
    return _BYTES_OF_PART + len(message.get("body", b""))


def _expired(answer: Answer, now: float) -> bool:
    return answer.expires is not None and answer.expires <= now


async def _never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future has no result")
