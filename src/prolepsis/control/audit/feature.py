"""The audit log of a server: its requests, acts that wait for a server, and anchors."""

import asyncio

import structlog

from prolepsis.control.audit.anchors import AnchorFeature, default_file, places
from prolepsis.control.audit.requests import AuditFeature, Decode
from prolepsis.control.audit.routes import Replay
from prolepsis.control.audit.waiting import take
from prolepsis.control.store.database import Database
from prolepsis.control.store.signing import key_file
from prolepsis.control.web.context import Context
from prolepsis.control.web.feature import Feature
from prolepsis.core.errors import ConfigError, StoreUnavailable

log = structlog.get_logger(__name__)

ANCHOR_S = 60.0
"""Seconds between two anchors of the audit log."""


def feature(context: Context, decode: Decode, replay: Replay) -> AuditFeature:
    """Return the audit of requests; `replay` decodes a recorded one again."""
    config, client = context.config, context.client
    return AuditFeature(
        context.store,
        decode,
        lambda: client.info,
        replay,
        context.emit,
        sample=config.audit_sample,
        content=config.audit_content,
    )


class WaitingActs(Feature):
    """Appends the acts that wait, now and then."""

    name = "waiting_acts"
    period_s = 2.0

    def __init__(self, database: Database) -> None:
        self._database = database

    async def tick(self) -> None:
        try:
            await asyncio.to_thread(take, self._database)
        except (StoreUnavailable, ConfigError) as error:  # the writer reports both; the acts stay
            log.debug("acts_wait", error=str(error))


def waiting_acts(context: Context) -> Feature:
    return WaitingActs(context.database)


def anchors(context: Context) -> Feature:
    """Return what writes the anchors of a store that lasts; in another nothing is recorded."""
    config, database = context.config, context.database
    if not database.is_kept:
        return Feature()
    kept = places(config.audit_anchor, default_file(key_file(config), database))
    return AnchorFeature(database, kept, context.registry, period_s=ANCHOR_S)
