"""The events of a background response, read once for all streams that follow it here."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from jiter import from_json

from prolepsis.server.answering.usage import Json

_POLL_S = 0.25
"""How often it is seen what a response has said that runs on another server."""
_MOST_EVENTS, _MOST_BYTES = 500, 2**18
Read = Callable[[int], tuple[str | None, Sequence[str]]]
"""Returns the status of the response, and a page of its events behind a number. Waits for the database."""


class FollowedEvents:
    """Has the last events that were read; each follower has its own place. Belongs to one event loop."""

    def __init__(self, read: Read, runs_here: Callable[[], bool]) -> None:
        """`runs_here`: whether `add` gets each event."""
        self._read = read
        self._runs_here = runs_here
        self._turn = asyncio.Lock()
        self._status: str | None = None
        self._first, self._events, self._num_bytes = 0, list[Json](), 0
        self._has_last = False
        """The store has no event behind these, as far as is known."""
        self._looked = 0.0
        self._news = asyncio.Event()

    async def behind(self, number: int) -> tuple[str | None, Sequence[Json]]:
        """Return the status of the response, None without one, and the next events behind a number."""
        async with self._turn:
            place, news = number + 1 - self._first, self._news
            if not 0 <= place < len(self._events) + self._has_last:
                self._has_last = False
                self._status, texts = await asyncio.to_thread(self._read, number)
                self._looked = time.monotonic()
                if texts or place != len(self._events):
                    self._hold(number + 1, texts)
                self._has_last, place = not texts and news is self._news, number + 1 - self._first
            return self._status, self._events[place:]

    def add(self, first: int, texts: Sequence[str]) -> None:
        if self._has_last and texts:
            is_next = first == self._first + len(self._events)
            has_room = len(self._events) < _MOST_EVENTS and self._num_bytes < _MOST_BYTES
            self._hold(self._first if is_next and has_room else first, texts)
        self._news.set()
        self._news = asyncio.Event()

    async def changed(self) -> None:
        """Wait for the next events, or until the store is to be asked for them."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._news.wait()
        if not self._runs_here() and time.monotonic() >= self._looked + _POLL_S:
            self._has_last = False

    def _hold(self, first: int, texts: Sequence[str]) -> None:
        """Hold events behind the others, if `first` is still the first of all; else alone."""
        if first != self._first or not self._has_last:
            self._first, self._events, self._num_bytes = first, [], 0
        self._events = [*self._events, *(from_json(text.encode()) for text in texts)]
        self._num_bytes += sum(map(len, texts))
