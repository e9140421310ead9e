"""Runs tests on a clock that jumps."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import ParamSpec

from prolepsis.lab.virtual_engine.virtual_time import VirtualTime

P = ParamSpec("P")


def virtual_time(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    """Run an async test on a clock of its own that starts at 0."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=VirtualTime) as runner:
            runner.run(test(*args, **kwargs))

    return run
