"""Time that setting the system's clock does not move."""

import time
from collections.abc import Callable


class SteadyClock:
    """Unix time, read once and carried on by the monotonic clock: setting the system's clock promotes nothing."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._start = wall() - monotonic()
        self._monotonic = monotonic

    def __call__(self) -> float:
        return self._start + self._monotonic()
