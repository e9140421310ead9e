"""An event loop whose clock jumps to the next timer, so that waiting takes no time and happens at exact moments."""

import asyncio
import selectors


class VirtualTime(asyncio.SelectorEventLoop):
    """For code that waits for timers and other tasks; sockets are looked at where nothing else is left to wait for."""

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
        self._loop.now += max(0.0, timeout)
        return []
