"""Fairness between clients before a route is reached: bounds on uploads, large work, new requests and their heads.

Reading and parsing requests shares the interpreter with the tokens of all clients, so no client may take all of it.
"""

import asyncio
import os
import sys
import threading
import time
import zlib
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request

from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.refusals import too_large, too_many_uploads

Value = TypeVar("Value")

BODIES_OF_TENANT = 64  # how many bodies of the largest size one tenant may have waiting to be parsed

_BYTES_WITHOUT_PROMPT = 256 * 2**10
_BYTES_OF_TOKEN = 16
_BYTES_OF_MEMBER = 24


def body_limit(max_model_len: int) -> int:
    """Return the default for the largest body, in bytes: it has room for a full context, a schema and logit biases.

    JSON is parsed in one piece, and the tokens of all tenants wait meanwhile; so the size is bounded.
    """
    return _BYTES_WITHOUT_PROMPT + _BYTES_OF_TOKEN * max_model_len


class Uploads:
    """Reads bodies, and counts by tenant the bytes that are not parsed yet. Belongs to one event loop."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        """Largest size of one body."""
        self.most_members = most_bytes // _BYTES_OF_MEMBER
        """Most fields, lists and objects of one body."""
        self._bytes_of: dict[str, int] = {}

    @asynccontextmanager
    async def read(self, request: Request, tenant: str) -> AsyncIterator[bytes]:
        """Read the body and hold it until it is parsed; raises `Refused` beyond the bounds."""
        chunks: list[bytes] = []
        size, decoded = 0, _decoder(request, self.most_bytes)
        try:
            async for part in request.stream():
                chunk = decoded(part)
                size += len(chunk)
                self._hold(tenant, len(chunk))
                if size > self.most_bytes:
                    raise too_large("body", f"{self.most_bytes} bytes")
                limit = BODIES_OF_TENANT * self.most_bytes
                if self._bytes_of.get(tenant, 0) > limit:
                    raise too_many_uploads(limit)
                chunks.append(chunk)
            yield b"".join(chunks)
        finally:
            self._hold(tenant, -size)

    def _hold(self, tenant: str, num_bytes: int) -> None:
        held = self._bytes_of.get(tenant, 0) + num_bytes
        if held:
            self._bytes_of[tenant] = held
        else:
            self._bytes_of.pop(tenant, None)


def _decoder(request: Request, most_bytes: int) -> Callable[[bytes], bytes]:
    """Return what reads the parts of a body; of a compressed one it gives at most a little more than `most_bytes`."""
    if request.headers.get("content-encoding", "identity").lower() == "identity":
        return lambda part: part
    stream = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    def decoded(part: bytes) -> bytes:
        try:
            content = stream.decompress(part, most_bytes + 1)
        except zlib.error as error:
            raise RequestRefused(f"The request body is not valid gzip: {error}.", code="invalid_gzip") from None
        if stream.unused_data:
            raise RequestRefused("The request body has bytes behind the end of its gzip stream.", code="invalid_gzip")
        if not part and not stream.eof:  # the server's sign of the end
            raise RequestRefused("The request body ends inside its gzip stream.", code="invalid_gzip")
        return content

    return decoded


INLINE_BYTES = 4096  # work on at most this many bytes runs on the event loop: a thread would cost more
PAID_BACK = 3
"""A tenant's next large work waits this many times as long as its last one took of the processor."""


class _TenantQueue:
    """The large work of one tenant, in the order of arrival."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0
        """Pieces that wait, run, or still block the next one."""


NICENESS = 10  # added to the niceness of threads whose work gives way, on Linux


def _give_way() -> None:
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)


class LargeWork:
    """Runs large work of requests in threads: one piece per tenant at a time, and at most one per core.

    Parsing large JSON and rendering a long conversation hold the interpreter, which the tokens of all tenants need, and
    tokenising holds a core. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._queues: dict[str, _TenantQueue] = {}
        self._threads = CapacityLimiter(os.cpu_count() or 1)
        self._patient = ThreadPoolExecutor(os.cpu_count(), "large-work", initializer=_give_way)

    async def run(self, tenant: str, num_bytes: int, work: Callable[[], Value], *, gives_way: bool = True) -> Value:
        """Run `work`, in a thread if `num_bytes` is large, and return its result; raises what it raises.

        `gives_way`: it gets what the engine leaves of the processor. Work that holds the interpreter does not: others
        would wait for it all the longer.
        """
        return work() if num_bytes <= INLINE_BYTES else await self.off_loop(tenant, work, gives_way=gives_way)

    async def off_loop(self, tenant: str, work: Callable[[], Value], *, gives_way: bool = True) -> Value:
        """Run `work` in a thread when it is the tenant's turn, and return its result."""
        queue = self._queues.setdefault(tenant, _TenantQueue())
        queue.length += 1
        try:
            await queue.turn.acquire()
        except BaseException:
            self._leave(tenant, queue)
            raise
        took_s, loop = 0.0, asyncio.get_running_loop()

        def timed() -> Value:
            nonlocal took_s
            begun = time.thread_time()
            try:
                return work()
            finally:
                took_s = time.thread_time() - begun

        async def in_thread() -> Value:
            if not gives_way:
                return await to_thread.run_sync(timed, limiter=self._threads)
            async with self._threads:
                return await loop.run_in_executor(self._patient, timed)

        running = asyncio.ensure_future(in_thread())
        running.add_done_callback(lambda _: loop.call_later(PAID_BACK * took_s, self._end, tenant, queue))
        return await asyncio.shield(running)  # a client that leaves does not end the thread's work, nor the turn

    def _end(self, tenant: str, queue: _TenantQueue) -> None:
        queue.turn.release()
        self._leave(tenant, queue)

    def _leave(self, tenant: str, queue: _TenantQueue) -> None:
        queue.length -= 1
        if not queue.length:
            del self._queues[tenant]


class _InTurn(Generic[Value]):
    """Waiting items, client after client, for each client in the order of arrival."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[Value]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._queues)

    def put(self, client: str, value: Value) -> None:
        self._queues.setdefault(client, deque()).append(value)

    def take(self) -> Value:
        """Return what is next; raises `KeyError` if nothing waits."""
        client, queue = self._queues.popitem(last=False)
        value = queue.popleft()
        if queue:
            self._queues[client] = queue
        return value


class RoundRobin:
    """Lets one waiting request continue per round of the event loop, client after client. Belongs to one event loop.

    A thousand small requests that arrive at once take a second; other clients' tokens do not wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting = _InTurn[asyncio.Future[None]]()

    async def turn(self, client: str) -> None:
        """Wait for a round; requests of one `client` continue in the order of arrival."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._grant)
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.put(client, granted)
        await granted

    def _grant(self) -> None:
        """Let the next request of the next client continue whose client is not gone."""
        while self._waiting:
            granted = self._waiting.take()
            if not granted.done():
                granted.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)


SLICE_S, PERIOD_S = 0.003, 0.010


class TimeSlice:
    """Limits one kind of work on the event loop: it waits where the loop was at work `SLICE_S` of a `PERIOD_S`.

    If the loop were never idle, the engine's thread would wait milliseconds each time it needs the interpreter. What
    counts is the processor time of the loop's thread: what comes while the loop is idle waits for nothing.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, worked: Callable[[], float] = time.thread_time
    ) -> None:
        """`worked`: seconds for which the loop's thread has been at work."""
        self._clock, self._worked = clock, worked
        self._begin, self._worked_before = -PERIOD_S, 0.0

    def is_over(self) -> bool:
        """Return whether the work must wait for the next period; a period begins with its first call."""
        now = self._clock()
        if now >= self._begin + PERIOD_S:
            self._begin, self._worked_before = now, self._worked()
        if now < self._begin + SLICE_S:  # asked first: the other clock takes ten times as long
            return False
        return self._worked() >= self._worked_before + SLICE_S


class Reading:
    """Lets connections read their requests in a time slice, host after host. Belongs to one event loop.

    Connections that have to wait are called in the next slice, only as many as it has time for: if 500 of them checked
    whether it is their turn, that alone would take all of the loop.
    """

    def __init__(self, time_slice: TimeSlice | None = None) -> None:
        self._slice = time_slice or TimeSlice()
        self._waiting = _InTurn[Callable[[], None]]()
        self._is_resuming = False

    def has_to_wait(self) -> bool:
        """Return whether a connection has to wait now: none overtakes waiting ones."""
        return self._slice.is_over() or (bool(self._waiting) and not self._is_resuming)

    def later(self, host: str, resume: Callable[[], None]) -> None:
        """Call `resume` when it is the turn of a connection from `host`."""
        if not self._waiting and not self._is_resuming:
            self._wait()
        self._waiting.put(host, resume)

    def _resume(self) -> None:
        self._is_resuming = True
        try:
            while self._waiting and not self._slice.is_over():
                resume = self._waiting.take()
                resume()
        finally:
            self._is_resuming = False
            if self._waiting:
                self._wait()

    def _wait(self) -> None:
        asyncio.get_running_loop().call_later(PERIOD_S - SLICE_S, self._resume)


@dataclass(frozen=True, slots=True)
class Intake:
    """The bounds that all routes of one application share."""

    uploads: Uploads
    strict_parameters: bool = False  # fields of clients' bodies that change nothing are refused
    round_robin: RoundRobin = field(default_factory=RoundRobin)
    large_work: LargeWork = field(default_factory=LargeWork)
