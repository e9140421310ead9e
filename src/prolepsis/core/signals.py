"""Signals that stop a process, SIGINT and SIGTERM, taken by another handler for a while."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def handling_stops(handler: Callable[[int, FrameType | None], object] | signal.Handlers) -> Iterator[None]:
    """Give both signals to `handler` in the block; where another thread runs it nothing changes, as it gets none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, restored in before.items():
            signal.signal(number, restored)
