"""Speculation shows in a stream as bursts; here each token leaves alone, evenly over the time its step took."""

import asyncio
import heapq
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from itertools import count

from prolepsis.core.events import Event, Tokens

MAX_STEP_S = 0.25
"""Longest time over which one step's tokens are spread; no token is later than this after its step."""


class Pacer:
    """Says when each token of a step is due, from the times at which steps arrive."""

    def __init__(self) -> None:
        self._arrived: dict[int, float] = {}
        self._due: dict[int, float] = {}

    def take(self, event: Tokens, now: float) -> list[tuple[float, Tokens]]:
        """Return the event's tokens one by one with the clock readings (seconds) at which they are due.

        The tokens of one sample never change their order. A sample's first step has no time yet: it leaves at once.
        """
        step_s = min(MAX_STEP_S, now - self._arrived.get(event.index, now))
        self._arrived[event.index] = now
        spacing = step_s / max(1, len(event.token_ids))
        due = max(now, self._due.get(event.index, now))
        parts = [(due + i * spacing, part) for i, part in enumerate(split(event))]
        self._due[event.index] = due + step_s
        return parts

    def last_due(self, now: float) -> float:
        """Return when everything taken so far is due."""
        return max([now, *self._due.values()])


def split(event: Tokens) -> list[Tokens]:
    """Return an event per token; the last one carries how the sample ended."""
    if len(event.token_ids) <= 1:
        return [event]
    parts = []
    for i, token in enumerate(event.token_ids):
        logprobs = None if event.logprobs is None else event.logprobs[i : i + 1]
        last = i == len(event.token_ids) - 1
        reason, stop = (event.finish_reason, event.stop_reason) if last else (None, None)
        accepted_by = event.accepted_by[i : i + 1]
        parts.append(Tokens(event.request_id, event.index, (token,), logprobs, reason, stop, accepted_by=accepted_by))
    return parts


async def paced(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Yield `events` token by token at an even pace; what raises or ends them comes after the tokens before it."""
    arrivals: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
    reading = asyncio.ensure_future(_read(events, arrivals))
    try:
        async for event in _in_time(arrivals):
            yield event
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading


async def _read(events: AsyncIterator[Event], arrivals: asyncio.Queue[Event | Exception | None]) -> None:
    try:
        async for event in events:
            arrivals.put_nowait(event)
        arrivals.put_nowait(None)
    except Exception as error:  # handed on to whoever reads the stream
        arrivals.put_nowait(error)
    finally:
        if isinstance(events, AsyncGenerator):
            await events.aclose()


async def _in_time(arrivals: asyncio.Queue[Event | Exception | None]) -> AsyncGenerator[Event, None]:
    pacer, order = Pacer(), count()
    waiting: list[tuple[float, int, Event | Exception | None]] = []
    while True:
        now = time.monotonic()
        if waiting and waiting[0][0] <= now:
            item = heapq.heappop(waiting)[2]
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
            continue
        try:
            async with asyncio.timeout(waiting[0][0] - now if waiting else None):
                arrived = await arrivals.get()
        except TimeoutError:
            continue
        now = time.monotonic()
        if isinstance(arrived, Tokens):
            for due, part in pacer.take(arrived, now):
                heapq.heappush(waiting, (due, next(order), part))
        else:
            heapq.heappush(waiting, (pacer.last_due(now), next(order), arrived))
