"""The events of one request on the way from an engine to their reader."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from prolepsis.core.errors import DeadlineExceeded, ProlepsisError
from prolepsis.core.events import Aborted, Event, Failed, Terminal, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats


class EventStream:
    """Holds events for their reader, and counts what came, for a request that ends without the engine's figures."""

    def __init__(self, request: GenerateRequest, arrival: float) -> None:
        self.request = request
        self.arrival = arrival
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()  # an exception is raised at the reader
        self._num_output_tokens = 0

    async def next(self) -> Event:
        """Wait for the next event; raises an exception that comes in its place."""
        event = await self.events.get()
        if isinstance(event, Exception):
            raise event
        return event

    @contextmanager
    def deadline(self, grace_s: float, expire: Callable[[DeadlineExceeded], None]) -> Iterator[None]:
        """Call `expire` so long after the request's deadline, where its engine has not ended it."""
        limit = self.request.deadline_s
        if limit is None:
            yield
            return
        error = DeadlineExceeded.unfinished(limit)
        timer = asyncio.get_running_loop().call_later(limit + grace_s, expire, error)
        try:
            yield
        finally:
            timer.cancel()

    def put(self, event: Event) -> None:
        """Count an event and hold it for the reader."""
        self.count(event)
        self.events.put_nowait(event)

    def count(self, event: Event) -> None:
        """Count an event that the reader gets in another way."""
        if isinstance(event, Tokens):
            self._num_output_tokens += len(event.token_ids)

    def fail(self, error: ProlepsisError, now: float) -> None:
        self.put(Failed(self.request.request_id, error, self.stats(now)))

    def abort(self, reason: str, now: float) -> None:
        self.put(Aborted(self.request.request_id, self.stats(now), reason))

    def stats(self, now: float) -> RequestStats:
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=self._num_output_tokens,
            total_s=now - self.arrival,
        )


def deliver(events: Sequence[Event], streams: dict[str, EventStream]) -> set[str]:
    """Put events into the streams of their requests; return the requests that have ended, whose streams are gone."""
    ended = set[str]()
    for event in events:
        stream = streams.get(event.request_id)
        if stream is not None:
            stream.put(event)
        if isinstance(event, Terminal):
            streams.pop(event.request_id, None)
            ended.add(event.request_id)
    return ended
