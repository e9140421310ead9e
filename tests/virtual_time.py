"""An event loop whose clock jumps to the next timer, so that waiting takes no time and happens at exact moments."""

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import ParamSpec

P = ParamSpec("P")


class VirtualTime(asyncio.SelectorEventLoop):
    """For code that waits for timers and other tasks; threads and sockets would seem to take for ever."""

    def __init__(self) -> None:
        super().__init__(_Jumping(self))
        self.now = 0.0

    def time(self) -> float:
        return self.now


class _Jumping(selectors.DefaultSelector):
    def __init__(self, loop: VirtualTime) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            return super().select(None)
        ready = super().select(0)
        if not ready:
            self._loop.now += max(0.0, timeout)
        return ready


def virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an async test on a clock of its own that starts at 0."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTime) as runner:
            runner.run(test(*args, **kwargs))

    return run
