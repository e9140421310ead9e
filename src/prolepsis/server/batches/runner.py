"""Runs the batches of a store behind everything else: reads their files, runs their lines, ends them."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from functools import partial

import structlog

from prolepsis.control.store.batches import LEASE_S, BatchLine, BatchTable, LineResult, Status, StoredBatch
from prolepsis.control.store.replicas import PeriodicWork
from prolepsis.control.store.tenant_files import PART_BYTES, FileTable
from prolepsis.control.web.caller import Caller
from prolepsis.control.web.context import Context
from prolepsis.control.web.errors import RequestRefused, describe_error
from prolepsis.control.web.feature import Feature, contained_tick
from prolepsis.core.audit_event import SERVER, AuditEvent
from prolepsis.core.config import DAY_S
from prolepsis.core.telemetry.declare import counter, gauge
from prolepsis.server.auth.keys import Keys
from prolepsis.server.batches.lines import LineReader, parse_line
from prolepsis.server.batches.run_line import NotNow, background, not_run, run_line
from prolepsis.server.services import Models

WINDOW_S = DAY_S
_PAUSE_S = 1.0
_NO_ROOM_S = 0.05
_HOUR_S = 3600.0
log = structlog.get_logger(__name__)


class BatchRunner(Feature):
    """Belongs to one event loop. What it leased and did not settle, another server runs after `LEASE_S`."""

    name = "batches"

    def __init__(self, context: Context, models: Models, keys: Keys) -> None:
        self.files, self.table = FileTable(context.database), BatchTable(context.database)
        self.retention_s = context.config.batch_retention_days * DAY_S
        self.wake = asyncio.Event()
        """Set where something new can be done."""
        self._is_kept = context.database.is_kept
        self._emit = context.emit
        self._models = models
        self._keys = keys
        self._periodic_work = PeriodicWork(context.database)
        self._reading = set[asyncio.Task[None]]()
        self._running: dict[asyncio.Task[None], BatchLine] = {}
        self._tenants = Counter[str]()
        """Lines in flight here, by tenant."""
        self._renewed = self._not_before = self._looked = 0.0
        self._open: list[StoredBatch] = []
        self._lines = counter(context.registry, "batch_lines", "Lines of batches that ended here", "state")
        self._in_flight = gauge(context.registry, "batch_lines_in_flight", "Lines of batches that run here")

    async def run(self) -> None:
        """Work until cancelled."""
        if not self._is_kept:
            return
        while True:
            await contained_tick(self)
            self.wake.clear()
            has_work = any(batch.status == "in_progress" for batch in self._open)
            with suppress(TimeoutError):
                async with asyncio.timeout(_NO_ROOM_S if has_work else _PAUSE_S):
                    await self.wake.wait()

    async def tick(self) -> None:
        """Do what is due: leases, files to read, lines to run, batches to end."""
        now = time.monotonic()
        if any(services.admission.draining for services in self._models.by_name.values()):
            await self._let_go()
            return
        if self._running and now > self._renewed + LEASE_S / 3:
            await asyncio.to_thread(self.table.renew, list(self._running.values()))
            self._renewed = now
        if now > self._looked + _PAUSE_S or self.wake.is_set():
            await self._look()
            self._looked = now
        if now >= self._not_before:
            await self._start()
        self._in_flight.set(len(self._running))

    async def close(self) -> None:
        await self._let_go()

    async def _let_go(self) -> None:
        """Stop all work here; another server may take the lines at once."""
        lines, tasks = list(self._running.values()), [*self._running, *self._reading]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if lines:
            await asyncio.to_thread(self.table.renew, lines, for_s=0.0)

    async def _look(self) -> None:
        """See which batches there are; begin, end and forget them."""
        self._open = await asyncio.to_thread(self.table.running)
        for batch in self._open:
            if batch.status == "validating" and not self._reading:
                if await asyncio.to_thread(self.table.take_reading, batch.batch_id):
                    self._keep(self._reading, asyncio.create_task(self._read(batch)))
            elif batch.status != "validating":
                await asyncio.to_thread(self._end, batch)
        if await asyncio.to_thread(self._periodic_work.take, "batches", _HOUR_S):
            await asyncio.to_thread(self._forget)

    async def _start(self) -> None:
        """Start lines while there is room, first those of tenants that have the fewest in flight."""
        ours = [one for one in self._open if one.status == "in_progress" and one.model in self._models.by_name]
        num_tenants = len({one.tenant for one in ours})
        for batch in sorted(ours, key=lambda one: (self._tenants[one.tenant], one.created_at)):
            most = -(-self._room(batch.model) // num_tenants)
            lines = await asyncio.to_thread(self.table.claim, batch.batch_id, most) if most > 0 else []
            for line in lines:
                self._tenants[batch.tenant] += 1
                task = asyncio.create_task(self._run(batch, line))
                self._running[task] = line
                task.add_done_callback(partial(self._ran, batch.tenant))

    def _room(self, model: str) -> int:
        """Return how many lines may start; those that are on their way to admission count as started."""
        admission = self._models.by_name[model].admission
        return min(admission.background_room, admission.num_places - len(self._running))

    async def _run(self, batch: StoredBatch, line: BatchLine) -> None:
        """Run one line, and keep its result if it is still this server's."""
        try:
            result = await self._result(batch, line)
        except NotNow as later:
            self._not_before = time.monotonic() + later.wait_s
            await asyncio.to_thread(self.table.renew, [line], for_s=0.0)
            return
        if await asyncio.to_thread(self.table.settle, [(line, result)]):
            self._lines.labels(result.state).inc()

    async def _result(self, batch: StoredBatch, line: BatchLine) -> LineResult:
        try:
            caller = self._caller(batch)
        except RequestRefused as error:  # its key was revoked or has expired
            return not_run(error.code, str(error), line.custom_id)
        raw = await asyncio.to_thread(self.files.bytes_of, batch.input_file_id, line.start, line.length)
        return await run_line(parse_line(raw), caller, self._models)

    def _caller(self, batch: StoredBatch) -> Caller:
        """Return the caller whose batch it is; raises `RequestRefused` where its key no longer counts."""
        caller = self._keys.caller_of_id(batch.key_id)
        if caller.tenant != batch.tenant:
            raise RequestRefused("The batch's key is another tenant's now.", code="invalid_api_key", status=401)
        return background(caller)

    def _ran(self, tenant: str, task: "asyncio.Task[None]") -> None:
        del self._running[task]
        self._tenants[tenant] -= 1
        self.wake.set()
        if not task.cancelled() and isinstance(error := task.exception(), Exception):  # its lease lapses: it runs again
            log.error("batch_line_not_settled", error=str(describe_error(error)))

    async def _read(self, batch: StoredBatch) -> None:
        """Read the file of a batch and keep its lines; a file with faults fails the batch."""
        reader, number = LineReader(batch.batch_id, [str(batch.document["endpoint"])]), 0
        large_work = next(iter(self._models.by_name.values())).intake.large_work
        while piece := await asyncio.to_thread(self.files.bytes_of, batch.input_file_id, number, PART_BYTES):
            lines = await large_work.off_loop(batch.tenant, partial(reader.take, piece))
            await asyncio.to_thread(self.table.add_lines, batch.batch_id, lines)
            number += PART_BYTES
        await asyncio.to_thread(self.table.add_lines, batch.batch_id, reader.end())
        if reader.faults:
            errors = {"object": "list", "data": [asdict(fault) for fault in reader.faults]}
            at = {"failed_at": int(time.time())}
            await asyncio.to_thread(
                partial(self.table.change, batch.batch_id, "failed", ["validating"], errors=errors, **at)
            )
        else:
            await asyncio.to_thread(self.table.begin, batch.batch_id, reader.model)
        self.wake.set()

    def _keep(self, tasks: "set[asyncio.Task[None]]", task: "asyncio.Task[None]") -> None:
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def _end(self, batch: StoredBatch) -> None:
        """End a batch that is due: all lines have run, its time is over, or it is cancelled. Waits for the database."""
        is_late = batch.expires_at <= time.time()
        if is_late:
            message = "This request could not be executed before the completion window expired."
            self.table.write_off(batch.batch_id, partial(not_run, "batch_expired", message), running=True)
        elif batch.status == "cancelling":
            message = "This request was not executed, as its batch was cancelled."
            self.table.write_off(batch.batch_id, partial(not_run, "batch_cancelled", message), running=False)
        status: Status = "cancelled" if batch.status == "cancelling" else "expired" if is_late else "completed"
        if self.table.finish(batch.batch_id, status, batch.status, self.retention_s):
            event = f"batch.{status}"
            self._emit(AuditEvent(actor=SERVER, action=event, subject=batch.batch_id, tenant=batch.tenant))

    def _forget(self) -> None:
        """Delete what has expired."""
        for file in self.files.due():
            if self.files.user_of(file.file_id) is None:
                self.files.remove(file)
        self.table.forget(before=time.time() - self.retention_s)
