"""The interface between the application and a feature: its routes, its clock, and the requests that have ended."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import reduce
from operator import or_
from types import MappingProxyType

import structlog

from prolepsis.control.web.routes import Route
from prolepsis.core.ended import Keep, RequestAbout, RequestEnded
from prolepsis.core.requests import GenerateRequest

log = structlog.get_logger(__name__)


class Feature:
    """Base class with defaults: a feature overrides the parts that it needs. Belongs to one event loop."""

    name: str = ""  # name in logs
    period_s: float | None = None  # seconds between two ticks; None: the feature has no clock
    routes: Sequence[Route] = ()
    health_parts: Mapping[str, Callable[[], object]] = MappingProxyType({})
    """Parts of /admin/health, by name; each function's annotation is the part's type."""
    ticks_before_serving: bool = False
    """The first request waits for the first tick; for what may turn speculation off."""

    async def tick(self) -> None:
        """Do what is due; called at the start, then every `period_s`."""

    async def run(self) -> None:
        """Tick until cancelled; a tick that fails is logged and does not affect anything else."""
        if self.period_s is None:
            return
        if not self.ticks_before_serving:
            await contained_tick(self)
        while True:
            await asyncio.sleep(self.period_s)
            await contained_tick(self)

    def keeps(self, about: RequestAbout, request: GenerateRequest) -> Keep:
        """Return what the feature needs of a request that the engine gets now; its end is announced in any case."""
        return Keep.FIGURES

    def on_request_end(self, ended: RequestEnded) -> None:
        """Take in a request that has ended; each one comes once."""

    async def close(self) -> None:
        """Release what the feature holds; the application shuts down."""


@asynccontextmanager
async def running(features: Sequence[Feature]) -> AsyncIterator[None]:
    """Run the features while the block runs; close them at its end."""
    for feature in features:
        if feature.ticks_before_serving:
            await contained_tick(feature)
    tasks = [asyncio.create_task(_contained_run(feature)) for feature in features]
    yield
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    for feature in features:
        try:
            await feature.close()
        except Exception:  # contained: the others are closed, and so is the engine
            log.exception("close_failed", feature=feature.name)


async def _contained_run(feature: Feature) -> None:
    try:
        await feature.run()
    except Exception:  # contained: a feature that cannot run does not stop the server, nor its shutdown
        log.exception("run_failed", feature=feature.name)


async def contained_tick(feature: Feature) -> None:
    """Tick once; a failure is logged."""
    try:
        await feature.tick()
    except Exception:  # contained: if control fails, requests are served as before
        log.exception("tick_failed", feature=feature.name)


def most_kept(features: Sequence[Feature], about: RequestAbout, request: GenerateRequest) -> Keep:
    """Return all that features need of a request."""
    return reduce(or_, (feature.keeps(about, request) for feature in features), Keep.FIGURES)


def announce_end(features: Sequence[Feature], ended: RequestEnded) -> None:
    """Give a request that has ended to all features; a failure is logged."""
    for feature in features:
        try:
            feature.on_request_end(ended)
        except Exception:  # contained: no account of a request may fail it
            log.exception("request_end_not_taken", feature=feature.name)
