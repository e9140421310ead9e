"""The events of one request on the way from an engine to their reader."""

import asyncio

from prolepsis.core.events import Event, Tokens
from prolepsis.core.requests import GenerateRequest
from prolepsis.core.stats import RequestStats


class EventStream:
    """Holds events for their reader, and counts what came, for a request that ends without the engine's figures."""

    def __init__(self, request: GenerateRequest, arrival: float) -> None:
        self.request = request
        self.arrival = arrival
        self.events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        """An exception is raised at the reader."""
        self._num_output_tokens = 0

    def put(self, event: Event) -> None:
        """Count an event and hold it for the reader."""
        self.count(event)
        self.events.put_nowait(event)

    def count(self, event: Event) -> None:
        """Count an event that the reader gets in another way."""
        if isinstance(event, Tokens):
            self._num_output_tokens += len(event.token_ids)

    def stats(self, now: float) -> RequestStats:
        """Return what is known here."""
        return RequestStats(
            num_prompt_tokens=len(self.request.prompt_token_ids),
            num_output_tokens=self._num_output_tokens,
            total_s=now - self.arrival,
        )
