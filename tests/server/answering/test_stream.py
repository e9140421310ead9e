import asyncio

import pytest
from starlette.requests import ClientDisconnect

from prolepsis.server.answering.stream import until_disconnect


async def never() -> dict[str, object]:
    await asyncio.Event().wait()
    return {}


async def gone() -> dict[str, object]:
    return {"type": "http.disconnect"}


async def test_returns_what_the_work_returns() -> None:
    async def work() -> int:
        return 3

    assert await until_disconnect(never, work()) == 3


async def test_raises_what_the_work_raises() -> None:
    async def work() -> int:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await until_disconnect(never, work())


async def test_the_work_has_ended_when_the_client_is_gone() -> None:
    ended = False

    async def work() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    with pytest.raises(ClientDisconnect):
        await until_disconnect(gone, work())
    assert ended


async def test_cancelling_the_caller_ends_the_work() -> None:
    started, ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended = True

    task = asyncio.create_task(until_disconnect(never, work()))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended
