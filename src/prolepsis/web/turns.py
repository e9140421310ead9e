"""Large work before admission: off the event loop, one piece of each tenant at a time, and paid back in waiting."""

import asyncio
import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from anyio import CapacityLimiter, to_thread

INLINE_BYTES = 4096
"""Work on at most this many bytes is done at once: a thread would cost more."""
PAID_BACK = 3
"""For how many times as long as its work held the interpreter a tenant's next large work waits: it gets a quarter."""
Value = TypeVar("Value")


class _Line:
    """The large work of one tenant, in the order of arrival."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.length = 0
        """Pieces that wait or run, and those that are paid back."""


class _Timed(Generic[Value]):
    """Work that notes for how long it held the interpreter."""

    def __init__(self, work: Callable[[], Value]) -> None:
        self._work = work
        self.held_s = 0.0

    def __call__(self) -> Value:
        begun = time.thread_time()
        try:
            return self._work()
        finally:
            self.held_s = time.thread_time() - begun


class Turns:
    """Runs large work of requests in threads: one piece of each tenant at a time, and at most one a core.

    Reading wide JSON or rendering a long conversation holds the interpreter, which every tenant's tokens pass. What
    releases it, such as tokenising, is not paid back. Belongs to one event loop.
    """

    def __init__(self) -> None:
        self._lines: dict[str, _Line] = {}
        self._threads = CapacityLimiter(os.cpu_count() or 1)

    async def run(self, tenant: str, num_bytes: int, work: Callable[[], Value]) -> Value:
        """Return what `work` on so many bytes of a tenant returns; raises what it raises."""
        return work() if num_bytes <= INLINE_BYTES else await self.off_loop(tenant, work)

    async def off_loop(self, tenant: str, work: Callable[[], Value]) -> Value:
        """Return what `work` returns, in a thread and in the tenant's turn."""
        line = self._lines.setdefault(tenant, _Line())
        line.length += 1
        try:
            await line.turn.acquire()
        except BaseException:
            self._leave(tenant, line)
            raise
        timed = _Timed(work)
        try:
            return await to_thread.run_sync(timed, limiter=self._threads)
        finally:
            asyncio.get_running_loop().call_later(PAID_BACK * timed.held_s, self._end, tenant, line)

    def _end(self, tenant: str, line: _Line) -> None:
        line.turn.release()
        self._leave(tenant, line)

    def _leave(self, tenant: str, line: _Line) -> None:
        line.length -= 1
        if not line.length:
            del self._lines[tenant]
