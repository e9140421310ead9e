"""Writes records and audit entries behind the scenes: who offers one never waits, whatever the database does."""

import threading
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from prolepsis.audit import chain
from prolepsis.audit.prepared import PendingAct, Prepared
from prolepsis.core.audit_event import AuditEvent
from prolepsis.core.errors import ProlepsisError, StoreUnavailable
from prolepsis.store import records
from prolepsis.store.database import Database, Kind, StoreHealth
from prolepsis.store.migrate import upgrade
from prolepsis.store.records import RequestRecord
from prolepsis.telemetry.store import DropReason, StoreMetrics

Item = RequestRecord | AuditEvent | PendingAct

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Times in seconds."""

    max_queued: int = 20_000
    """Items kept while the database cannot be written; what comes on top is dropped."""
    max_batch: int = 500
    max_pending: int = 20
    """Of a batch's items, those that are still to be put together (`PendingAct`)."""
    linger_s: float = 0.2
    """How long the first item of a batch waits for others: what a killed process may lose of its records."""
    first_retry_s: float = 0.1
    longest_retry_s: float = 10.0
    retention_s: float | None = None
    """Records that ended longer ago are deleted; None keeps them."""
    tend_every_s: float = 3600.0


class Writer:
    """A bounded queue and a thread that empties it in batches, each in one transaction.

    A batch that the database cannot take is tried again until it can; an item that it refuses is dropped alone.
    """

    def __init__(self, database: Database, metrics: StoreMetrics, settings: WriterSettings | None = None) -> None:
        """The thread starts at once; what schema is missing is made before the first batch."""
        self._database = database
        self._metrics = metrics
        self._settings = settings or WriterSettings()
        self._changed = threading.Condition()
        self._queue: deque[Item] = deque()
        self._closing = False
        self._giving_up = False
        self._num_flushes = 0
        """Callers that wait for the queue to be empty."""
        self._in_hand = 0
        self._written: Counter[Kind] = Counter()
        self._dropped: Counter[Kind] = Counter()
        self._failure = ""
        self._schema_is_known = False
        self._tend_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="store-writer", daemon=True)
        self._thread.start()

    def offer(self, item: Item) -> bool:
        """Queue an item; returns False where there was no room, and it is dropped. Never waits for the database."""
        with self._changed:
            if not self._closing and len(self._queue) < self._settings.max_queued:
                self._queue.append(item)
                self._metrics.queued.set(len(self._queue))
                self._changed.notify_all()
                return True
        self._drop([item], "closed" if self._closing else "queue_full")
        return False

    def drop(self, item: Item) -> None:
        """Count an item as lost for want of room."""
        self._drop([item], "queue_full")

    def health(self) -> StoreHealth:
        with self._changed:
            num_queued = len(self._queue) + self._in_hand
            written, dropped = dict(self._written), dict(self._dropped)
            return StoreHealth(not self._failure, self._failure, num_queued, written, dropped)

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was offered is written or dropped; returns whether it is."""
        with self._changed:
            self._num_flushes += 1
            self._changed.notify_all()
            done = self._changed.wait_for(lambda: not self._queue and not self._in_hand, timeout_s)
            self._num_flushes -= 1
            return done

    def close(self, timeout_s: float = 5.0) -> None:
        """Take nothing more, write what is queued within the time, drop what is not; ends the thread."""
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
            self._tend()
            batch = self._take()
            if batch is None:
                return
            self._write(batch)
            with self._changed:
                self._in_hand = 0
                self._changed.notify_all()

    def _take(self) -> list[Item] | None:
        """Wait for items and return a batch, an empty one when it is time to tend, None when all is done."""
        settings = self._settings
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing, max(0.0, self._tend_at - time.monotonic()))
            if not self._queue:
                return None if self._closing else []
            self._changed.wait_for(self._is_due, settings.linger_s)
            batch = self._next_batch()
            self._in_hand = len(batch)
            self._metrics.queued.set(len(self._queue))
            return batch

    def _next_batch(self) -> list[Item]:
        """Take a batch from the queue; acts that are still to be put together take long, so few of them at once."""
        batch: list[Item] = []
        num_pending = 0
        while self._queue and len(batch) < self._settings.max_batch and num_pending < self._settings.max_pending:
            batch.append(self._queue.popleft())
            num_pending += isinstance(batch[-1], PendingAct)
        return batch

    def _is_due(self) -> bool:
        return len(self._queue) >= self._settings.max_batch or self._closing or self._num_flushes > 0

    def _write(self, batch: Sequence[Item]) -> None:
        """Write a batch, however long that takes; only closing ends it early."""
        groups = deque([batch] if batch else [])
        wait_s = self._settings.first_retry_s
        while groups:
            try:
                self._put(groups[0])
            except ProlepsisError as error:  # time may help
                self._failed(error)
                if self._gives_up_within(wait_s):
                    self._drop([item for group in groups for item in group], "closed")
                    return
                wait_s = min(2.0 * wait_s, self._settings.longest_retry_s)
                continue
            except Exception as error:  # an item that the database refuses must not stop the others
                self._refused(groups[0], groups, error)
            groups.popleft()

    def _gives_up_within(self, wait_s: float) -> bool:
        """Wait before the next attempt; closing makes that early, and the ones after it quick."""
        with self._changed:
            closing = self._closing
            longest_s = min(wait_s, self._settings.first_retry_s) if closing else wait_s
            self._changed.wait_for(lambda: self._giving_up or self._closing != closing, longest_s)
            return self._giving_up

    def _put(self, batch: Sequence[Item]) -> None:
        self._prepare()
        requests, acts = _ready(batch)  # redacts: not while others wait for the chain's end
        with self._database.write() as connection:
            _write_items(connection, requests, acts)
        kinds = Counter(map(_kind, batch))
        with self._changed:
            self._written.update(kinds)
        for kind, number in kinds.items():
            self._metrics.written.labels(kind).inc(number)
        self._went_well()

    def _prepare(self) -> None:
        if self._schema_is_known:
            return
        try:
            upgrade(self._database)
        except ProlepsisError:
            raise
        except Exception as error:  # whatever it is, it is no fault of what waits to be written
            raise StoreUnavailable(f"store {self._database.name}: no schema ({type(error).__name__})") from error
        self._schema_is_known = True

    def _refused(self, group: Sequence[Item], groups: deque[Sequence[Item]], error: Exception) -> None:
        if len(group) > 1:
            groups.extend([item] for item in group)
            return
        log.error("store_refused", kind=_kind(group[0]), error=type(error).__name__)
        self._drop(group, "refused")

    def _went_well(self) -> None:
        self._metrics.up.set(1)
        with self._changed:
            was, self._failure = self._failure, ""
        if was:
            log.info("store_is_back", store=self._database.name)

    def _failed(self, error: ProlepsisError) -> None:
        self._schema_is_known = False  # it may be another file or server by the time it is back
        self._metrics.failures.inc()
        self._metrics.up.set(0)
        with self._changed:
            was, self._failure = self._failure, str(error)
        if was != self._failure:
            log.error("store_failed", error=self._failure)

    def _drop(self, items: Sequence[Item], reason: DropReason) -> None:
        kinds = Counter(map(_kind, items))
        with self._changed:
            first = not self._dropped
            self._dropped.update(kinds)
        for kind, number in kinds.items():
            self._metrics.dropped.labels(kind, reason).inc(number)
        if items and (first or reason == "closed"):
            log.error("store_drops", reason=reason, items=len(items))

    def _tend(self) -> None:
        """Now and then, and soon after a failure: look after the schema and delete old records."""
        now, settings = time.monotonic(), self._settings
        if now < self._tend_at:
            return
        try:
            self._prepare()
            if settings.retention_s is not None:
                records.prune(self._database, time.time() - settings.retention_s)
        except ProlepsisError as error:
            self._failed(error)
            self._tend_at = now + settings.longest_retry_s
        else:
            self._went_well()
            self._tend_at = now + settings.tend_every_s


def _ready(batch: Sequence[Item]) -> tuple[list[RequestRecord], list[AuditEvent | Prepared]]:
    requests: list[RequestRecord] = []
    acts: list[AuditEvent | Prepared] = []
    for item in batch:
        if isinstance(item, RequestRecord):
            requests.append(item)
        else:
            acts.append(item.prepared if isinstance(item, PendingAct) else item)
    return requests, acts


def _write_items(
    connection: Connection, requests: Sequence[RequestRecord], acts: Sequence[AuditEvent | Prepared]
) -> None:
    if requests:
        records.add(connection, requests)
    if acts:
        chain.append(connection, acts)


def _kind(item: Item) -> Kind:
    return "request" if isinstance(item, RequestRecord) else "audit"
