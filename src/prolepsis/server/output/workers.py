"""Threads for policies that may wait: few, bounded, and never waited for when the server stops."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

_MAX_THREADS = 16
_Value = TypeVar("_Value")


class Workers:
    """Runs calls in daemon threads, started as they are needed. Belongs to one event loop.

    A call that nobody waits for any more keeps its thread until it returns: threads that hang are not replaced, and
    where all of them do every later call is late.
    """

    def __init__(self, max_threads: int = _MAX_THREADS) -> None:
        self._max_threads = max_threads
        self._num_threads = 0
        self._num_busy = 0
        self._lock = threading.Lock()
        self._calls: SimpleQueue[tuple[Future[object], Callable[[], object]]] = SimpleQueue()

    async def run(self, work: Callable[[], _Value], timeout_s: float) -> _Value:
        """Return what `work` returns or raise what it raises; `TimeoutError` where that takes longer."""
        future: Future[_Value] = Future()
        self._calls.put((future, work))  # type: ignore[arg-type]  # the queue holds futures of all kinds
        self._count(future)
        async with asyncio.timeout(timeout_s):
            return await asyncio.wrap_future(future)

    def _count(self, future: Future[_Value]) -> None:
        with self._lock:
            self._num_busy += 1
            wanted = self._num_threads < min(self._num_busy, self._max_threads)
            self._num_threads += wanted
        future.add_done_callback(lambda _: self._done())
        if wanted:
            threading.Thread(target=self._serve, name="output-policy", daemon=True).start()

    def _done(self) -> None:
        with self._lock:
            self._num_busy -= 1

    def _serve(self) -> None:
        while True:
            future, work = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                value = work()
            except BaseException as error:  # handed on to whoever waits
                with suppress(Exception):
                    future.set_exception(error)
            else:
                future.set_result(value)
