"""What many requests at once may take of the event loop before it turns to other clients."""

import asyncio
import time
from collections import OrderedDict, deque
from collections.abc import Callable

SLICE_S, PERIOD_S = 0.003, 0.010


class Slice:
    """The share of time that one kind of work may take of the event loop: `SLICE_S` of each `PERIOD_S`.

    The engine's thread would wait for the interpreter next to a loop that is never idle, milliseconds for each turn.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begin = -PERIOD_S

    def is_over(self) -> bool:
        """Return whether the work has to wait for the next period; a period begins with the first call in it."""
        now = self._clock()
        if now >= self._begin + PERIOD_S:
            self._begin = now
        return now >= self._begin + SLICE_S


class Starts:
    """Lets one waiting request a round go on, client after client in turn. Belongs to one event loop.

    A thousand small requests that come at once take a second; so the tokens of others do not wait for all of them.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    async def turn(self, client: str) -> None:
        """Wait for a round; requests of equal `client` go on in the order in which they came."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._grant)
        granted: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(client, deque()).append(granted)
        await granted

    def _grant(self) -> None:
        while self._waiting and not self._grant_one():
            pass
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._grant)

    def _grant_one(self) -> bool:
        """Take the next request of the client whose turn it is; return whether it still waits."""
        client, line = self._waiting.popitem(last=False)
        granted = line.popleft()
        if line:
            self._waiting[client] = line
        if granted.done():  # its client is gone
            return False
        granted.set_result(None)
        return True
