"""When requests come: so many at once, or each at its time, whether or not what answers keeps up."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from math import inf
from typing import Annotated, TypeVar

import typer

from prolepsis.core.errors import ConfigError
from prolepsis.core.requests import LatencyTarget

T = TypeVar("T")
Job = Callable[[], Awaitable[T]]
GoalFirstMs = Annotated[float, typer.Option(min=0, help="latest first token that counts for goodput")]
GoalTokenMs = Annotated[float, typer.Option(min=0, help="longest time a token that counts")]


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyGoal:
    """What a request must keep to count for goodput: longest times, in seconds."""

    first_token_s: float = 2.0
    per_token_s: float = 0.1

    @classmethod
    def of_ms(cls, first_token_ms: float, per_token_ms: float) -> "LatencyGoal":
        return cls(first_token_s=first_token_ms / 1000.0, per_token_s=per_token_ms / 1000.0)

    def of(self, target: LatencyTarget | None) -> "LatencyGoal":
        """Return the goal of a request with a target of its own."""
        first_ms, each_ms = (target.first_token_ms, target.ms_per_token) if target else (None, None)
        return LatencyGoal(
            first_token_s=first_ms / 1000.0 if first_ms else self.first_token_s,
            per_token_s=each_ms / 1000.0 if each_ms else self.per_token_s,
        )

    def is_kept(self, first_token_s: float | None, per_token_s: float | None) -> bool:
        """Return whether an answer keeps it; a time that it has not counts as kept."""
        return (first_token_s or 0.0) <= self.first_token_s and (per_token_s or 0.0) <= self.per_token_s


@dataclass(frozen=True, slots=True)
class TrafficLoad:
    """How many requests come; one of the two is given."""

    at_once: int | None = None  # A closed loop: the next request comes when one ends
    per_second: float | None = None  # random arrivals, independent of each other (a Poisson process)

    def __str__(self) -> str:
        return f"{self.at_once} at once" if self.at_once else f"{self.per_second:g} a second"

    @property
    def name(self) -> str:
        """As it is given, fit for the name of a file."""
        return f"{self.at_once}" if self.at_once else f"{self.per_second:g}-a-second"


def load_of(text: str) -> TrafficLoad:
    """Return the load of a text such as `8` (at once) or `2/s`; raises `ConfigError` for any other."""
    number = text.removesuffix("/s")
    try:
        load = TrafficLoad(at_once=int(text)) if number == text else TrafficLoad(per_second=float(number))
    except ValueError:
        load = TrafficLoad()
    if not 0 < (load.at_once or load.per_second or 0) < 1e6:
        raise ConfigError(f"loads hold {text!r}; allowed: requests at once (8) or a second (2/s)", param="loads")
    return load


async def arriving(
    jobs: Iterable[tuple[float, Job[T]]], *, at_once: int | None = None, seconds: float = inf, at_least: int = 0
) -> list[T]:
    """Start jobs when they are due, in seconds from now, or so many at once; return their results in order.

    None begins after `seconds`, but `at_least` so many do. When one raises, no other begins, those that run are
    cancelled, and it is raised.
    """
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[T]]()
    begin, slots, failed = loop.time(), asyncio.Semaphore(at_once or sys.maxsize), asyncio.Event()

    async def run(job: Job[T]) -> T:
        try:
            return await job()
        except BaseException:
            failed.set()
            raise
        finally:
            slots.release()

    try:
        for at, job in jobs:
            await slots.acquire()
            is_over = len(tasks) >= at_least and max(at, loop.time() - begin) >= seconds
            if is_over or failed.is_set():
                break
            if at_once is None:
                await asyncio.sleep(max(0.0, begin + at - loop.time()))
            tasks.append(asyncio.create_task(run(job)))
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def in_flight(jobs: Iterable[Job[T]], at_once: int) -> list[T]:
    """Run jobs, started in order, at most so many at once; return their results in order."""
    return await arriving([(0.0, job) for job in jobs], at_once=at_once)
