"""Wakes features that follow the store as soon as another replica has written, where the database can tell."""

import asyncio
from collections.abc import Mapping
from contextlib import aclosing

import structlog

from prolepsis.core.errors import StoreUnavailable
from prolepsis.store.database import Database
from prolepsis.store.notices import Topic, notices
from prolepsis.web.feature import Feature, contained_tick

AGAIN_S = 5.0
"""Seconds until it listens again after the connection was lost; meanwhile the features poll, as they always do."""

log = structlog.get_logger(__name__)


class Wakeups(Feature):
    """Ticks a feature for each notice of its topic; those that come meanwhile are one. Belongs to one event loop."""

    name = "wakeups"

    def __init__(self, database: Database, features: Mapping[Topic, Feature], *, again_s: float = AGAIN_S) -> None:
        self.listening = asyncio.Event()
        """Set while notices come."""
        self._database = database
        self._features = features
        self._again_s = again_s
        self._due: dict[str, asyncio.Event] = {topic: asyncio.Event() for topic in features}

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for topic, feature in self._features.items():
                group.create_task(_tick_when(self._due[topic], feature))
            group.create_task(self._keep_listening())

    async def _keep_listening(self) -> None:
        while True:
            try:
                await self._listen()
            except StoreUnavailable as error:  # contained: the features poll
                log.warning("not_woken", error=str(error))
            self.listening.clear()
            await asyncio.sleep(self._again_s)

    async def _listen(self) -> None:
        async with aclosing(notices(self._database)) as heard:
            async for topic in heard:
                if not topic:  # it listens from here on, and may have missed some
                    self.listening.set()
                for due in [self._due[topic]] if topic in self._due else self._due.values():
                    due.set()


async def _tick_when(due: asyncio.Event, feature: Feature) -> None:
    while True:
        await due.wait()
        due.clear()
        await contained_tick(feature)
