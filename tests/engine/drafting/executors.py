"""Executors without threads, for what is built off the step."""

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Value = TypeVar("Value")


class AtOnce(Executor):
    """Runs what is submitted before `submit` returns."""

    def submit(self, fn: Callable[P, Value], /, *args: P.args, **kwargs: P.kwargs) -> Future[Value]:
        done: Future[Value] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Later(Executor):
    """Runs nothing until it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[P, Value], /, *args: P.args, **kwargs: P.kwargs) -> Future[Value]:
        future: Future[Value] = Future()

        def work() -> None:
            if future.set_running_or_notify_cancel():
                future.set_result(fn(*args, **kwargs))

        self.waiting.append(work)
        return future

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()
