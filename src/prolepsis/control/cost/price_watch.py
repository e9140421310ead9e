"""Follows the price book of a server: the price in use, its series, audit entries, and history in the store."""

import asyncio
import json
from collections.abc import Callable
from contextlib import suppress

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.cost.history import store_prices
from prolepsis.control.cost.prices import PriceBook, PriceFile, PriceInUse
from prolepsis.control.store.database import Database
from prolepsis.core.audit_event import SERVER, AuditEvent, Emit
from prolepsis.core.telemetry.declare import counter, gauge

log = structlog.get_logger(__name__)


class PriceWatch:
    """Belongs to one event loop; without a file there is no price."""

    def __init__(
        self,
        registry: CollectorRegistry,
        file: PriceFile | None,
        database: Database,
        *,
        emit: Emit,
        use: Callable[[PriceInUse], None],
    ) -> None:
        """`use` gets each price that comes into use."""
        text = "The price in use"
        self._price = gauge(registry, "price_per_device_second", text, "currency", "price", "version")
        self._refused = counter(registry, "price_book_refused", "Edits of the price book that were refused")
        self._file = file
        self._database = database
        self._emit = emit
        self._use = use
        self._kept: str | None = None
        """Version of the book in the store."""
        self.book: PriceBook | None = None
        self.price: PriceInUse | None = None
        if file is not None:
            self._take(file, "loaded")

    async def poll(self) -> None:
        """Read the file if it changed, and save a new book in the store once; what fails is tried again."""
        if (file := self._file) is None:
            return
        before = file.value
        reload = await asyncio.to_thread(file.poll)
        if reload.refused is not None:
            self._refused.inc()
            log.error("prices_not_reloaded", error=str(reload.refused), in_use=before.full_version)
        elif reload.changed:
            self._take(file, "reloaded", before.content())
        if self._kept != file.value.full_version:
            with suppress(Exception):  # contained: the writer reports an unavailable database
                await asyncio.to_thread(self._keep, file.value.full_version, file.value.content())
                self._kept = file.value.full_version

    def _take(self, file: PriceFile, act: str, before: object = None) -> None:
        book = self.book = file.value
        self.price = PriceInUse(**file.price.model_dump(), currency=book.currency, version=book.full_version)
        self._price.clear()
        self._price.labels(book.currency, file.price.name, book.full_version).set(file.price.per_second)
        self._use(self.price)
        log.info(f"prices_{act}", file=str(file.path), version=book.full_version, price=file.price.name)
        self._emit(
            AuditEvent(
                actor=SERVER,
                action=f"prices.{act}",
                subject=str(file.path),
                before=before,
                after=book.content(),
                versions={"prices": book.full_version},
            )
        )

    def _keep(self, version: str, content: object) -> None:
        with self._database.write() as connection:
            store_prices(connection, version, json.dumps(content, sort_keys=True))
