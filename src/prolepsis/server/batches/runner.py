"""Runs the batches of a store behind everything else: reads their files, runs their lines, ends them."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial

import structlog

from prolepsis.control.store.batches import LEASE_S, BatchLine, BatchTable, LineResult, Status, StoredBatch
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable
from prolepsis.control.store.turns import PeriodicWork
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused
from prolepsis.control.web.feature import Feature, contained_tick
from prolepsis.control.web.skipped import apart
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import DAY_S
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.server.batches.lines import LineReader
from prolepsis.server.batches.run_line import NotNow, not_run, run_line
from prolepsis.server.batches.verified import agreement, answer_line, cost
from prolepsis.server.front.keys import Keys
from prolepsis.server.services import Models

WINDOW_S = DAY_S
_LOOK_S = 1.0
_ROOM_S = 0.05
_HOUR_S = 3600.0
_NOT_RUN = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, as its batch was cancelled."),
}
log = structlog.get_logger(__name__)


class BatchRunner(Feature):
    """Belongs to one event loop. What it leased and did not settle, another server runs after `LEASE_S`."""

    name = "batches"

    def __init__(self, context: Context, models: Models, keys: Keys) -> None:
        self.files, self.table = FileTable(context.database), BatchTable(context.database)
        self.retention_s = context.config.batch_retention_days * DAY_S
        self._is_kept = context.database.is_kept
        self._emit = context.emit
        self._models = models
        self._intake = next(iter(models.by_name.values())).intake
        self._keys = keys
        self._periodic_work = PeriodicWork(context.database)
        self._wake = asyncio.Event()
        self._skipped = context.skipped
        self._reading: dict[str, asyncio.Task[None]] = {}
        """What reads a file, by tenant: each reads one at a time, and waits for no other tenant's."""
        self._running: dict[asyncio.Task[LineResult], tuple[StoredBatch, BatchLine]] = {}
        self._ended: list[tuple[BatchLine, LineResult]] = []
        """Lines whose results are not in the store yet."""
        self._refused: list[BatchLine] = []
        """Lines that are to be given back, as there was no room."""
        self._open: list[StoredBatch] = []
        """Batches whose next lines may run here."""
        self._looked = self._renewed = self._not_before = self._forgot = 0.0
        self._lines = counter(context.registry, "batch_lines", "Lines of batches that ended here", "state")
        self._in_flight = gauge(context.registry, "batch_lines_in_flight", "Lines of batches that run here")

    def poll_now(self) -> None:
        """Look at the store at once: something has changed there."""
        self._looked = 0.0
        self._wake.set()

    async def run(self) -> None:
        while self._is_kept:
            self._wake.clear()
            await contained_tick(self)
            with suppress(TimeoutError):
                async with asyncio.timeout(_ROOM_S if self._open else _LOOK_S):
                    await self._wake.wait()

    async def tick(self) -> None:
        """Do what is due. Without the store, whose writer reports it, results wait here and no line starts."""
        with suppress(StoreUnavailable):
            await self._settle()
            now = time.monotonic()
            if any(services.admission.draining for services in self._models.by_name.values()):
                await self.close()
                return
            if now > self._renewed + LEASE_S / 3:
                await asyncio.to_thread(self.table.renew, [line for _, line in self._running.values()])
                self._renewed = now
            if now > self._looked + _LOOK_S:
                self._looked = now
                batches, served = await asyncio.to_thread(self.table.running), self._models.by_name
                running = self._skipped.due(self.name, batches, lambda item: item.batch_id)
                for batch in running:
                    if batch.status != "validating" or batch.expires_at <= time.time():
                        with self._skipped.contained(self.name, batch.batch_id, batch.tenant):
                            await asyncio.to_thread(self._end, batch)
                    elif batch.tenant not in self._reading and await asyncio.to_thread(
                        self.table.take_reading, batch.batch_id
                    ):
                        self._reading[batch.tenant] = asyncio.create_task(self._read(batch))
                running = [batch for batch in running if self._skipped.error_of(self.name, batch.batch_id) is None]
                self._open = [batch for batch in running if batch.status == "in_progress" and batch.model in served]
                if now > self._forgot + _HOUR_S:
                    self._forgot = now
                    if await asyncio.to_thread(self._periodic_work.take, self.name, _HOUR_S):
                        await asyncio.to_thread(self.table.forget, before=time.time() - self.retention_s)
            if now > self._not_before:
                await self._start()
            self._in_flight.set(len(self._running))

    async def close(self) -> None:
        """Stop all work here; another server may take the lines at once."""
        tasks = [*self._running, *self._reading.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._settle()

    async def _settle(self) -> None:
        """Keep the results that are there, in one transaction; what the store does not take now waits for the next."""
        ended, refused = list(self._ended), list(self._refused)
        if ended:
            for state in await asyncio.to_thread(apart, self.table.settle, ended, self._not_kept):
                self._lines.labels(state).inc()
            del self._ended[: len(ended)]
        if refused:
            await asyncio.to_thread(self.table.renew, refused, for_s=0.0)
            del self._refused[: len(refused)]

    def _not_kept(self, ended: tuple[BatchLine, LineResult], error: Exception) -> list[str]:
        """Keep that a line failed whose result the database refuses. Waits for the database."""
        return self.table.settle([(ended[0], _failed(ended[0], error))])

    async def _start(self) -> None:
        in_flight = Counter(batch.tenant for batch, _ in self._running.values())
        num_tenants = len({batch.tenant for batch in self._open})
        for batch in sorted(self._open, key=lambda candidate: (in_flight[candidate.tenant], candidate.created_at)):
            admission = self._models.by_name[batch.model].admission
            most = -(-admission.background_room(len(self._running)) // num_tenants)
            if most <= 0:
                continue
            lines = list[BatchLine]()
            with self._skipped.contained(self.name, batch.batch_id, batch.tenant):
                lines = await asyncio.to_thread(self.table.claim, batch.batch_id, most)
            for line in lines:
                task = asyncio.create_task(self._result(batch, line))
                self._running[task] = batch, line
                task.add_done_callback(self._ran)
            if len(lines) < most:
                self._open.remove(batch)  # until the next look

    async def _result(self, batch: StoredBatch, line: BatchLine) -> LineResult:
        try:
            caller = self._keys.client_of(batch.key_id, batch.tenant)
        except RequestRefused as error:  # its key was revoked, has expired or is no client's
            return not_run(error.code, str(error), line.custom_id)
        raw = await asyncio.to_thread(self.files.bytes_of, batch.input_file_id, line.start, line.length)
        verified = partial(answer_line, batch, line) if batch.document.get("verify") else None
        return await run_line(raw, line.custom_id, caller, self._models, verified)

    def _ran(self, task: "asyncio.Task[LineResult]") -> None:
        batch, line = self._running.pop(task)
        try:
            self._ended.append((line, task.result()))
        except NotNow as later:
            self._not_before = time.monotonic() + later.wait_s
            self._refused.append(line)
        except (asyncio.CancelledError, StoreUnavailable):
            self._refused.append(line)
        except Exception as error:  # contained: this line has failed, and no other
            self._ended.append((line, _failed(line, error)))
        if all(started.batch_id != batch.batch_id for started, _ in self._running.values()):
            self._looked = 0.0  # it may have been the last one
        self._wake.set()

    async def _read(self, batch: StoredBatch) -> None:
        """Read the file of a batch and keep its lines; a file with faults fails the batch."""
        try:
            with self._skipped.contained(self.name, batch.batch_id, batch.tenant):
                await self._keep_lines(batch)
        except StoreUnavailable:  # it is read again when the lease has lapsed
            pass
        finally:
            del self._reading[batch.tenant]
            self.poll_now()

    async def _keep_lines(self, batch: StoredBatch) -> None:
        batch_id, start, piece = batch.batch_id, 0, b"-"
        reader, work = LineReader(batch_id, [batch.document["endpoint"]], self._intake.uploads), self._intake.large_work
        while piece and not reader.is_over:
            piece = await asyncio.to_thread(self.files.bytes_of, batch.input_file_id, start, PART_BYTES)
            lines = await work.off_loop(batch.tenant, partial(reader.take, piece), gives_way=False)
            if not await asyncio.to_thread(self.table.add_lines, batch_id, lines):
                return  # it was cancelled or forgotten meanwhile
            start += PART_BYTES
        if reader.faults:
            errors = {"object": "list", "data": [asdict(fault) for fault in reader.faults]}
            await asyncio.to_thread(self.table.change, batch_id, "failed", ["validating"], errors=errors)
        else:
            await asyncio.to_thread(self.table.begin, batch_id, reader.model)

    def _end(self, batch: StoredBatch) -> None:
        """End a batch that is due: all lines have run, its time is over, or it is cancelled. Waits for the database."""
        is_late = batch.expires_at <= time.time()
        status: Status = "cancelled" if batch.status == "cancelling" else "expired" if is_late else "completed"
        document: dict[str, object] = {}
        if status == "completed" and (verify := batch.document.get("verify")):
            if (lines := self.table.judge(batch.batch_id, partial(agreement, at_least=verify["at_least"]))) is None:
                return
            document["cost"] = cost(lines.values())
        if status != "completed":
            self.table.write_off(batch.batch_id, partial(not_run, *_NOT_RUN[status]), running=is_late)
        if self.table.finish(batch.batch_id, status, batch.status, self.retention_s, **document):
            event = AuditEvent(actor=SERVER, action=f"batch.{status}", subject=batch.batch_id, tenant=batch.tenant)
            self._emit(event)


def _failed(line: BatchLine, error: Exception) -> LineResult:
    log.error("batch_line_failed", batch=line.batch_id, line=line.number, error=type(error).__name__)
    return not_run("server_error", "The server failed to run this request, or to keep its answer.", line.custom_id)
