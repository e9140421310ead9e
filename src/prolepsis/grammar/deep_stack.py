"""Calls that recurse deeply inside a library, on a thread whose stack holds them.

llguidance follows chains of names (rules, terminals, `$ref`) by recursion; where the stack ends, so does the process.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

STACK_BYTES = 256 << 20
"""Reserved, not used: the longest chain within the limits of `source` takes about a tenth of it."""

_sizing = threading.Lock()


def on_deep_stack(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises, after running it on a thread of its own."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # handed to the caller, whatever it is
            done.set_exception(error)

    thread = threading.Thread(target=run, name="grammar", daemon=True)
    with _sizing:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    return done.result()
