"""Work that ends when the client goes away."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from starlette.types import Receive

T = TypeVar("T")


class ClientDisconnected(Exception):
    """Nobody is left to answer."""


async def until_disconnect(receive: Receive, work: Coroutine[object, object, T]) -> T:
    """Return what `work` returns; cancel it and raise `ClientDisconnected` where the client leaves first.

    The request's body must have been read before. When this returns or raises, `work` has ended.
    """
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnected
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
