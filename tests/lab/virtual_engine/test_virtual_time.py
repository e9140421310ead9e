"""An event loop of virtual time: waiting takes none, and what would run in a thread runs at once."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from prolepsis.lab.virtual_engine.virtual_time import VirtualTime


def run(work: Coroutine[Any, Any, float]) -> float:
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work)


def test_an_hour_passes_at_once() -> None:
    async def hour() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    assert run(hour()) == 3600.0


def test_work_for_a_thread_runs_at_once_in_this_one() -> None:
    async def threads() -> float:
        assert await asyncio.to_thread(threading.get_ident) == threading.get_ident()
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return asyncio.get_running_loop().time()

    assert run(threads()) == 0.0
