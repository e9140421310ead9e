"""Several streams read as one."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yield what the streams yield as it comes; the first error ends them all."""
    if len(streams) == 1:
        async with aclosing(streams[0]) as stream:
            async for item in stream:
                yield item
        return
    arrivals: asyncio.Queue[tuple[T] | Exception | None] = asyncio.Queue()
    reading = [asyncio.ensure_future(_read(stream, arrivals)) for stream in streams]
    try:
        left = len(streams)
        while left:
            arrived = await arrivals.get()
            if isinstance(arrived, Exception):
                raise arrived
            if arrived is None:
                left -= 1
            else:
                yield arrived[0]
    finally:
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)


async def _read(stream: AsyncGenerator[T, None], arrivals: asyncio.Queue[tuple[T] | Exception | None]) -> None:
    async with aclosing(stream):
        try:
            async for item in stream:
                arrivals.put_nowait((item,))
            arrivals.put_nowait(None)
        except Exception as error:  # handed on to whoever reads the merged stream
            arrivals.put_nowait(error)
