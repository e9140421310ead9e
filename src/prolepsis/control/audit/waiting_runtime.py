"""Acts that wait for a server, while serving: they get their entries."""

import asyncio

import structlog

from prolepsis.control.audit.waiting import take
from prolepsis.control.store.database import Database
from prolepsis.control.web.feature import Feature
from prolepsis.core.errors import ConfigError, StoreUnavailable

log = structlog.get_logger(__name__)


class WaitingActs(Feature):
    """Takes the acts that wait, now and then."""

    name = "waiting_acts"
    period_s = 2.0

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tick(self) -> None:
        try:
            await asyncio.to_thread(take, self._database)
        except (StoreUnavailable, ConfigError) as error:  # the writer reports both; the acts stay
            log.debug("acts_wait", error=str(error))
