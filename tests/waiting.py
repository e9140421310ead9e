"""Waits with a limit: what does not come fails its test instead of hanging the whole run."""

import asyncio
import time
from collections.abc import Callable
from threading import Barrier, Thread

LIMIT_S = 60.0


def wait_for(condition: Callable[[], object]) -> None:
    """Ask again after pauses that grow: most conditions are requests to a server of this process."""
    end, pause_s = time.monotonic() + LIMIT_S, 0.005
    while not condition():
        assert time.monotonic() < end, f"waited {LIMIT_S:g} s"
        time.sleep(pause_s)
        pause_s = min(1.2 * pause_s, 0.05)


async def until(condition: Callable[[], object]) -> None:
    """Wait for the doing of another task, or of another thread."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def ended(*threads: Thread) -> None:
    """Wait for threads that have nothing left to do."""
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"{thread.name} has not ended in {LIMIT_S:g} s"


def at_once(*calls: Callable[[], object]) -> None:
    """Make all calls at the same time, each in a thread of its own."""
    start = Barrier(len(calls))

    def run(call: Callable[[], object]) -> None:
        start.wait()
        call()

    threads = [Thread(target=run, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    ended(*threads)
