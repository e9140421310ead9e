"""Writes request records and audit entries in the background: callers never wait for the database."""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog
from prometheus_client import CollectorRegistry

from prolepsis.control.store import records
from prolepsis.control.store.database import Database
from prolepsis.control.store.migrate import upgrade
from prolepsis.control.store.queue import KINDS, DropReason, Kind, QueueItem, StoreHealth, StoreMetrics
from prolepsis.control.store.turns import PeriodicWork, not_forgotten
from prolepsis.core.errors import ProlepsisError, StoreUnavailable

UPKEEP = "upkeep"  # the turn of deleting old records and texts: one replica does it for all

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Times in seconds."""

    max_queued: int = 20_000  # items kept while the database cannot be written; further ones are dropped
    max_batch: int = 500
    max_slow: int = 20  # items of a batch that are slow to prepare
    linger_s: float = 0.2
    """How long the first item of a batch waits for others; a killed process may lose this much of its records."""
    first_retry_s: float = 0.1
    max_retry_s: float = 10.0
    retention_s: float | None = None  # records that ended longer ago are deleted; None keeps them
    upkeep: Callable[[Database], object] | None = None
    """Further work on the database, done as often as old records are deleted."""
    maintain_every_s: float = 3600.0


class ItemWriter:
    """Takes items without waiting for the database; as it stands here, it records nothing."""

    is_on = False  # whether anything is written; where it is not, making an item is in vain

    def offer(self, item: QueueItem) -> bool:
        """Return whether the item was taken; never waits for the database."""
        return False

    def drop(self, item: QueueItem) -> None:
        """Count an item as lost because there was no room for it."""

    def health(self) -> StoreHealth:
        """Return how writing goes."""
        return StoreHealth(ok=True, detail="", num_queued=0, written={}, dropped={})

    def flush(self, timeout_s: float) -> bool:
        """Wait until every offered item is written or dropped; returns whether that is so."""
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Refuse new items, write the queue within the time, drop the rest, and end the thread."""


class Writer(ItemWriter):
    """A bounded queue and a thread that empties it in batches, each in one transaction.

    A batch is retried while the database is unavailable; an item that the database refuses is dropped alone.
    """

    is_on = True

    def __init__(self, database: Database, registry: CollectorRegistry, settings: WriterSettings | None = None) -> None:
        """The thread starts at once; it makes a missing schema before the first batch."""
        self._database = database
        self._periodic_work = PeriodicWork(database)
        self._metrics = StoreMetrics(registry)
        self._settings = settings or WriterSettings()
        self._changed = threading.Condition()
        self._queue: deque[QueueItem] = deque()
        self._closing = False
        self._giving_up = False
        self._num_flushes = 0
        """Callers that wait for the queue to be empty."""
        self._in_hand = 0
        self._written: Counter[Kind] = Counter()
        self._dropped: Counter[Kind] = Counter()
        self._failure = ""
        self._schema_is_known = False
        self._maintain_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def offer(self, item: QueueItem) -> bool:
        with self._changed:
            if not self._closing and len(self._queue) < self._settings.max_queued:
                self._queue.append(item)
                self._metrics.queued.set(len(self._queue))
                self._changed.notify_all()
                return True
        self._drop([item], "closed" if self._closing else "queue_full")
        return False

    def drop(self, item: QueueItem) -> None:
        self._drop([item], "queue_full")

    def health(self) -> StoreHealth:
        with self._changed:
            num_queued = len(self._queue) + self._in_hand
            written, dropped = dict(self._written), dict(self._dropped)
            return StoreHealth(not self._failure, self._failure, num_queued, written, dropped)

    def flush(self, timeout_s: float) -> bool:
        with self._changed:
            self._num_flushes += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._queue and not self._in_hand, timeout_s)
            self._num_flushes -= 1
            return done

    def close(self, timeout_s: float = 5.0) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self.flush(timeout_s)
        with self._changed:
            self._giving_up = True
            left = list(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._drop(left, "closed")
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            self._maintain()
            batch = self._take()
            if batch is None:
                return
            self._write(batch)
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()

    def _take(self) -> list[QueueItem] | None:
        """Wait for items and return a batch, empty when it is time for maintenance, None at the end."""
        settings = self._settings
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, max(0.0, self._maintain_at - time.monotonic()))
            if not self._queue:
                return None if self._closing else []
            self._changed.wait_for(
                lambda: len(self._queue) >= settings.max_batch or self._closing or self._num_flushes > 0,
                settings.linger_s,
            )
            batch: list[QueueItem] = []
            num_slow = 0
            while self._queue and len(batch) < settings.max_batch and num_slow < settings.max_slow:
                batch.append(self._queue.popleft())
                num_slow += batch[-1].is_slow
            self._in_hand = len(batch)
            self._metrics.queued.set(len(self._queue))
            return batch

    def _write(self, batch: Sequence[QueueItem]) -> None:
        """Write a batch; retry until that succeeds or the writer closes."""
        groups = deque([batch] if batch else [])
        wait_s = self._settings.first_retry_s
        while groups:
            try:
                self._put(groups[0])
            except ProlepsisError as error:  # a later attempt may succeed
                self._failed(error)
                if self._gives_up_within(wait_s):
                    self._drop([item for group in groups for item in group], "closed")
                    return
                wait_s = min(2.0 * wait_s, self._settings.max_retry_s)
                continue
            except Exception as error:  # an item that the database refuses must not stop the others
                if len(groups[0]) > 1:
                    groups.extend([item] for item in groups[0])
                else:
                    log.error("store_refused", kind=groups[0][0].kind, error=type(error).__name__)
                    self._drop(groups[0], "refused")
            groups.popleft()

    def _gives_up_within(self, wait_s: float) -> bool:
        """Wait before the next attempt; closing ends the wait and shortens the next ones."""
        with self._changed:
            closing = self._closing
            longest_s = min(wait_s, self._settings.first_retry_s) if closing else wait_s
            self._changed.wait_for(lambda: self._giving_up or self._closing != closing, longest_s)
            return self._giving_up

    def _put(self, batch: Sequence[QueueItem]) -> None:
        self._prepare_schema()
        for item in batch:
            item.prepare()  # before the transaction, so that no other writer waits for it
        with self._database.write() as connection:
            batch = not_forgotten(connection, batch)
            for kind in KINDS:
                if items := [item for item in batch if item.kind == kind]:
                    items[0].write(connection, items)
        for item in batch:
            item.written()
        kinds = Counter(item.kind for item in batch)
        with self._changed:
            self._written.update(kinds)
        for kind, number in kinds.items():
            self._metrics.written.labels(kind).inc(number)
        self._went_well()

    def _prepare_schema(self) -> None:
        if self._schema_is_known:
            return
        try:
            upgrade(self._database)
        except ProlepsisError:
            raise
        except Exception as error:  # not the fault of the items
            raise StoreUnavailable(f"store {self._database.name}: no schema ({type(error).__name__})") from error
        self._schema_is_known = True

    def _went_well(self) -> None:
        self._metrics.up.set(1)
        with self._changed:
            was, self._failure = self._failure, ""
        if was:
            log.info("store_is_back", store=self._database.name)

    def _failed(self, error: ProlepsisError) -> None:
        self._schema_is_known = False  # another file or server may replace it
        self._metrics.failures.inc()
        self._metrics.up.set(0)
        with self._changed:
            was, self._failure = self._failure, str(error)
        if was != self._failure:
            log.error("store_failed", error=self._failure)

    def _drop(self, items: Sequence[QueueItem], reason: DropReason) -> None:
        kinds = Counter(item.kind for item in items)
        with self._changed:
            first = not self._dropped
            self._dropped.update(kinds)
        for kind, number in kinds.items():
            self._metrics.dropped.labels(kind, reason).inc(number)
        if items and (first or reason == "closed"):
            log.error("store_drops", reason=reason, items=len(items))

    def _maintain(self) -> None:
        """Check the schema and delete old records: now and then, and soon after a failure."""
        now, settings = time.monotonic(), self._settings
        if now < self._maintain_at:
            return
        try:
            self._prepare_schema()
            if self._periodic_work.take(UPKEEP, settings.maintain_every_s):
                try:
                    if settings.retention_s is not None:
                        records.prune(self._database, time.time() - settings.retention_s)
                    if settings.upkeep is not None:
                        settings.upkeep(self._database)
                except ProlepsisError:
                    self._periodic_work.give_back(UPKEEP)  # the next replica does it
                    raise
        except ProlepsisError as error:
            self._failed(error)
            self._maintain_at = now + settings.max_retry_s
        else:
            self._went_well()
            self._maintain_at = now + settings.maintain_every_s
