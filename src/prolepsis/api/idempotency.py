"""Requests with an `Idempotency-Key`: a retry gets the answer of the first attempt, running or finished."""

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from hashlib import sha256

from prometheus_client import CollectorRegistry, Counter, Gauge
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from prolepsis.api.admission.controller import was_charged
from prolepsis.api.openai.context import SPEC_MODE
from prolepsis.api.stream import ClientDisconnected, until_disconnect
from prolepsis.core.config import ServerConfig
from prolepsis.core.errors import InvalidParameter
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

Attend = Callable[[Request], Awaitable[Response]]


class Answer:
    """One attempt's reply as it goes out; any number of clients read it from its start."""

    def __init__(self, fingerprint: bytes) -> None:
        self.fingerprint = fingerprint
        self.num_bytes = _BYTES_OF_ANSWER
        self.task: asyncio.Task[None] | None = None
        self.expires: float | None = None
        """Clock reading (seconds); None: it has not ended."""
        self.error: Exception | None = None
        """What the attempt was refused or failed with before its reply."""
        self._messages: list[Message] = []
        self._whole = False
        self._changed = asyncio.Event()

    @property
    def status(self) -> int | None:
        """The reply's status; None before it has one."""
        return self._messages[0]["status"] if self._messages else None

    async def send(self, message: Message) -> None:
        """Take the next message of the reply (ASGI)."""
        self._messages.append(message)
        self.num_bytes += _BYTES_OF_PART + len(message.get("body", b""))
        self._whole = message["type"] == "http.response.body" and not message.get("more_body", False)
        self.changed()

    def changed(self) -> None:
        """Wake up the readers."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def messages(self) -> AsyncGenerator[Message, None]:
        """Yield the reply's messages, those to come included; raises what the attempt failed with."""
        position = 0
        while True:
            while position < len(self._messages):
                yield self._messages[position]
                position += 1
            if self._whole:
                return
            if self.error is not None:
                raise self.error.with_traceback(None)
            await self._changed.wait()


class Idempotency(Feature):
    """Keeps answers by tenant and key while they run and for `idempotency_ttl_s` after. Belongs to one event loop.

    An attempt goes on without its client, which may come back for it. One that ends without a charge is not kept.
    Where the answers take `idempotency_bytes`, tenants with more than their share of them get no further ones.
    """

    name = "idempotency"
    period_s = 1.0

    def __init__(
        self, config: ServerConfig, registry: CollectorRegistry, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl_s = config.idempotency_ttl_s
        self._max_bytes = config.idempotency_bytes
        self._clock = clock
        self._answers: dict[str, dict[str, Answer]] = {}
        self._requests = Counter(
            "prolepsis_idempotent_requests", "Requests with an Idempotency-Key", ["result"], registry=registry
        )
        self._bytes = Gauge("prolepsis_idempotent_answer_bytes", "Estimated size of the answers", registry=registry)

    async def once(self, request: Request, body: Body, attend: Attend) -> Response:
        """Return the response of `attend`, or with a key that was seen before that of the first attempt.

        Raises `InvalidParameter` for a key that is not allowed, `RequestRefused` where the key was given with another
        request or there is no room, and what the first attempt raised before its reply.
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
        return await _Reading.begun(answer, replayed=True)

    async def tick(self) -> None:
        """Forget what has expired."""
        now = self._clock()
        for tenant, answers in list(self._answers.items()):
            for key in [key for key, answer in answers.items() if _expired(answer, now)]:
                del answers[key]
            if not answers:
                del self._answers[tenant]
        self._bytes.set(sum(map(_size, self._answers.values())))

    async def close(self) -> None:
        """End the attempts that still run; the server ends."""
        tasks = [answer.task for answers in self._answers.values() for answer in answers.values() if answer.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _find(self, tenant: str, key: str) -> Answer | None:
        answer = self._answers.get(tenant, {}).get(key)
        return None if answer is None or _expired(answer, self._clock()) else answer

    def _attempt(self, tenant: str, key: str, asked: bytes, request: Request, attend: Attend) -> Answer:
        self._check_room(tenant)
        answer = self._answers.setdefault(tenant, {})[key] = Answer(asked)
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
        answers = self._answers.get(tenant, {})
        if not kept and answers.get(key) is answer:
            del answers[key]

    def _check_room(self, tenant: str) -> None:
        own = self._answers.get(tenant, {})
        total = sum(map(_size, self._answers.values()))
        num_tenants = len(self._answers.keys() | {tenant})
        if total < self._max_bytes or _size(own) < self._max_bytes / num_tenants:
            return
        expiries = [answer.expires for answer in own.values() if answer.expires is not None]
        wait_s = max(1.0, min(expiries) - self._clock()) if expiries else 1.0
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


def _expired(answer: Answer, now: float) -> bool:
    return answer.expires is not None and answer.expires <= now


def _size(answers: Mapping[str, Answer]) -> int:
    return sum(answer.num_bytes for answer in answers.values())


async def _never() -> Message:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("the future has no result")
