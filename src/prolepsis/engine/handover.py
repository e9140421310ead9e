"""Brings the events of an engine's steps from its thread to the event loop of their readers.

To wake the loop takes a core from the pass that is under way, and the loop finds its code and data out of the caches,
so waking it costs as much as many events. Where steps follow each other within `INTERVAL_S`, the loop therefore looks
for what they brought only that often. First and last events of a request wake it at once.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from prolepsis.core.events import Event, Tokens

INTERVAL_S = 0.010
"""Longest time for which tokens wait for tokens of later steps; longer steps are handed over one by one."""


class Handover:
    """One engine's: `put` and `call` are for other threads than the loop's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[Sequence[Event]], None]) -> None:
        """`deliver` gets the events of each step, in their order, on the loop."""
        self.loop = loop
        self._deliver = deliver
        self._waiting: deque[Sequence[Event]] = deque()
        self.num_paced = 0
        """Requests under way whose events wait for nothing: their reader spreads tokens over the time of their step."""
        self._is_coming = False
        """The loop is going to look for what waits."""
        self._looked_at = -INTERVAL_S
        self._timer: asyncio.TimerHandle | None = None

    def put(self, events: Sequence[Event]) -> None:
        """Hand over the events of a step; raises `RuntimeError` if the loop is closed."""
        self._waiting.append(events)
        if not self._is_coming or self.num_paced or any(map(_is_urgent, events)):
            self._is_coming = True
            self.loop.call_soon_threadsafe(self._look)

    def call(self, callback: Callable[[], object]) -> None:
        """Call `callback` on the loop, after all that was put; raises `RuntimeError` if the loop is closed."""
        self.loop.call_soon_threadsafe(self._look)
        self.loop.call_soon_threadsafe(callback)

    def close(self) -> None:
        """Look no further: nothing comes any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        """Deliver, as the engine asks for it, and look again if the last time is a short while ago."""
        if self._timer is not None:
            self._timer.cancel()
        self._take(again=self.loop.time() < self._looked_at + INTERVAL_S)

    def _look_again(self) -> None:
        self._take(again=bool(self._waiting))

    def _take(self, *, again: bool) -> None:
        self._looked_at = self.loop.time()
        self._timer = self.loop.call_later(INTERVAL_S, self._look_again) if again else None
        self._is_coming = again  # before it takes: what is put from here on is taken too, or wakes the loop
        while self._waiting:
            self._deliver(self._waiting.popleft())


def _is_urgent(event: Event) -> bool:
    return not isinstance(event, Tokens) or event.position == 0
