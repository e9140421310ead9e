"""Speculation shows in a stream as bursts; here each token leaves alone, evenly over the time its step took."""

import asyncio
import heapq
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import suppress
from itertools import count

from prolepsis.core.events import Event, Tokens
from prolepsis.server.answering.stream import close

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
        parts.append(
            Tokens(
                event.request_id,
                event.index,
                (token,),
                event.position + i,
                logprobs,
                reason,
                stop,
                accepted_by=accepted_by,
                prompt_logprobs=None if i else event.prompt_logprobs,
            )
        )
    return parts


Arrival = Event | Exception | None
"""What the reader hands on: an event, what the events failed with, or their end."""


async def paced(events: AsyncIterator[Event], observe: Callable[[Event], None]) -> AsyncGenerator[Event, None]:
    """Yield events token by token at an even pace; their failure or end comes after the tokens before it.

    The events are read ahead of what has been taken; `observe` sees each when it arrives.
    """
    clock, arrivals, pacer, order = asyncio.get_running_loop().time, asyncio.Queue[Arrival](), Pacer(), count()
    waiting: list[tuple[float, int, Arrival]] = []

    async def read() -> None:
        try:
            async for event in events:
                observe(event)
                arrivals.put_nowait(event)
            arrivals.put_nowait(None)
        except Exception as error:  # handed on to the reader of the stream
            arrivals.put_nowait(error)

    reading = asyncio.create_task(read())
    try:
        while True:
            while not waiting or waiting[0][0] > clock():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(waiting[0][0] if waiting else None):
                        arrived = await arrivals.get()
                    parts: Sequence[tuple[float, Arrival]] = [(pacer.last_due(clock()), arrived)]
                    if isinstance(arrived, Tokens):
                        parts = pacer.take(arrived, clock())
                    for due, part in parts:
                        heapq.heappush(waiting, (due, next(order), part))
            item = heapq.heappop(waiting)[2]
            if item is None:
                return
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        reading.cancel()
        with suppress(asyncio.CancelledError):
            await reading
        await close(events)
