"""Batches in the store: their states, and their lines, which servers lease, run and settle once each."""

import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, delete, func, insert, select, update

from prolepsis.control.store.database import Database, StoreTable, hold
from prolepsis.control.store.pages import page_of
from prolepsis.control.store.tables import batch_lines, batches, files
from prolepsis.control.store.tenant_files import RUNNING, FileTable, TenantFile, delete_lines

Status = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
LEASE_S = 6.0  # a line whose server has not renewed its lease for so long is run by another one
USAGE = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
Judge = Callable[[Mapping[int, str]], tuple[Mapping[str, object], Sequence[int]]]
_CHUNK = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    batch_id: str
    tenant: str
    key_id: str  # key that made it; its lines run as the key's
    model: str  # empty until its file has been read
    input_file_id: str
    document: Mapping[str, Any]  # what else clients see of it
    status: Status
    created_at: float
    expires_at: float  # Unix time after which lines that did not run are given up
    leased_until: float = 0.0  # a server reads its file until then


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLine:
    """One line, as it stands in the batch's file."""

    batch_id: str
    number: int
    custom_id: str
    prefix: str
    start: int
    length: int
    lease: str = ""
    written: str | None = None  # of a result that was given up: who wrote it


@dataclass(frozen=True, slots=True)
class LineResult:
    state: Literal["completed", "failed"]
    text: str  # line of the output file, or of the file of errors
    usage: Sequence[int] = (0, 0, 0, 0)  # as `USAGE` names them
    written: str | None = None  # who wrote it, where a writer was asked; JSON

    @property
    def row(self) -> dict[str, object]:
        size = len(self.text.encode()) + 1
        usage = dict(zip(USAGE, self.usage, strict=True))
        return {"state": self.state, "result": self.text, "result_bytes": size, "written": self.written, **usage}


class BatchTable(StoreTable):
    def add(self, batch: StoredBatch, *, most_running: float = math.inf) -> bool:
        """Keep a batch; returns False where this many of its tenant's have not ended."""
        running = select(func.count()).where(batches.c.tenant == batch.tenant, batches.c.status.in_(RUNNING))
        with self._database.write() as connection:
            hold(connection, f"batches {batch.tenant}")
            if connection.execute(running).scalar_one() >= most_running:
                return False
            connection.execute(insert(batches).values(_columns(batch)))
        return True

    def get(self, tenant: str, batch_id: str) -> StoredBatch | None:
        rows = self._rows(select(batches).where(batches.c.batch_id == batch_id, batches.c.tenant == tenant))
        return rows[0] if rows else None

    def newest(self, tenant: str, *, after: str | None, most: int) -> list[StoredBatch]:
        query = select(batches).where(batches.c.tenant == tenant)
        return self._rows(page_of(query, batches, batches.c.batch_id, after, most))

    def running(self) -> list[StoredBatch]:
        """Return all batches that have not ended, the oldest first."""
        return self._rows(select(batches).where(batches.c.status.in_(RUNNING)).order_by(batches.c.created_at))

    def _rows(self, query: Select[*tuple[object, ...]]) -> list[StoredBatch]:
        with self._database.read() as connection:
            return [_batch(row) for row in connection.execute(query).mappings()]

    def change(
        self, batch_id: str, status: Status, expected: Sequence[Status], *, model: str = "", **document: object
    ) -> bool:
        """Move a batch on, and note when, if it is in one of the expected states; returns whether it was."""
        with self._database.write() as connection:
            held = _held(connection, batch_id, expected)
            if held is not None:
                _update(connection, replace(held, model=model or held.model), status, document)
        return held is not None

    def take_reading(self, batch_id: str) -> bool:
        """Return whether the caller reads the batch's file now, for `LEASE_S`; lines of an earlier attempt are gone."""
        of = batches.c
        with self._database.write() as connection:
            now = self._now(connection)
            take = update(batches).where(of.batch_id == batch_id, of.status == "validating", of.leased_until <= now)
            if connection.execute(take.values(leased_until=now + LEASE_S)).rowcount == 0:
                return False
        delete_lines(self._database, batch_lines.c.batch_id == batch_id)  # of a server that did not read it to its end
        return True

    def add_lines(self, batch_id: str, lines: Sequence[BatchLine]) -> bool:
        """Keep lines that were read, and the lease on reading; returns whether the batch is to be read further."""
        unrun = {"state": "open", "leased_until": 0.0, "result_bytes": 0, **dict.fromkeys(USAGE, 0)}
        rows = [{**asdict(line), **unrun} for line in lines]
        with self._database.write() as connection:
            leased = update(batches).where(batches.c.batch_id == batch_id, batches.c.status == "validating")
            until = self._now(connection) + LEASE_S
            is_read = connection.execute(leased.values(leased_until=until)).rowcount > 0
            if rows and is_read:
                connection.execute(insert(batch_lines), rows)
        return is_read

    def begin(self, batch_id: str, model: str) -> None:
        """Let the lines of a batch run whose file has been read."""
        self.change(batch_id, "in_progress", ["validating"], model=model)

    def claim(self, batch_id: str, most: int) -> list[BatchLine]:
        """Lease the next lines that nobody runs, in the order of their prefixes; replicas get different ones."""
        of, lease = batch_lines.c, uuid4().hex
        fields = (of.batch_id, of.number, of.custom_id, of.prefix, of.start, of.length, of.written)
        with self._database.write() as connection:
            now = self._now(connection)
            is_next = (of.batch_id == batch_id) & (of.state == "open") & (of.leased_until <= now)
            query = select(*fields).where(is_next).order_by(of.prefix, of.number).limit(most)
            rows = connection.execute(query.with_for_update(skip_locked=True)).mappings().all()
            if not rows:
                return []
            taken = (of.batch_id == batch_id) & of.number.in_([row["number"] for row in rows])
            connection.execute(update(batch_lines).where(taken).values(lease=lease, leased_until=now + LEASE_S))
        return [BatchLine(**row, lease=lease) for row in rows]

    def renew(self, lines: Sequence[BatchLine], *, for_s: float = LEASE_S) -> None:
        """Hold the leases on lines for longer; for 0 seconds: give them back."""
        if not lines:
            return
        with self._database.write() as connection:
            until = self._now(connection) + for_s
            for line in sorted(lines, key=_place):
                connection.execute(update(batch_lines).where(_leased(line)).values(leased_until=until))

    def settle(self, results: Sequence[tuple[BatchLine, LineResult]]) -> list[str]:
        """Keep the results of lines whose lease still holds; they are on disk when this returns, each line's once.

        Returns the states of those that were kept.
        """
        kept = list[str]()
        with self._database.write() as connection:
            for line, result in sorted(results, key=lambda pair: _place(pair[0])):
                settle = update(batch_lines).where(_leased(line)).values(result.row)
                kept += [result.state] * connection.execute(settle).rowcount
        return kept

    def write_off(self, batch_id: str, result_of: Callable[[str], LineResult], *, running: bool) -> None:
        """Settle lines that did not run, with what `result_of` says of their custom id; `running`: those too that some
        server runs now, which then settles nothing."""
        of = batch_lines.c

        def settle_some(connection: Connection) -> int:
            until = math.inf if running else self._now(connection)
            is_left = (of.batch_id == batch_id) & (of.state == "open") & (of.leased_until <= until)
            query = select(of.number, of.custom_id).where(is_left).order_by(of.number).limit(_CHUNK)
            rows = connection.execute(query.with_for_update()).all()
            for row in rows:
                at = (of.batch_id == batch_id) & (of.number == row.number)
                connection.execute(update(batch_lines).where(at).values(result_of(row.custom_id).row))
            return len(rows)

        self._database.repeat(settle_some)

    def counts(self, batch_id: str) -> Mapping[str, object]:
        """Return `request_counts` and `usage` of a batch as its lines stand now."""
        with self._database.read() as connection:
            return _counts(connection, batch_id)

    def judge(self, batch_id: str, judge: Judge) -> Mapping[int, str] | None:
        """State the agreement of a batch all of whose lines are settled, once, and let those run again that it names.

        Returns who wrote its lines, by number, where a writer was asked; None while lines are open.
        """
        of = batch_lines.c
        query = select(of.number, of.written).where(of.batch_id == batch_id, of.written.is_not(None))
        with self._database.write() as connection:
            held = _held(connection, batch_id, ["in_progress"])
            if held is None or connection.execute(_is_open(batch_id)).first() is not None:
                return None
            lines = {row.number: row.written for row in connection.execute(query)}
            if "agreement" in held.document:
                return lines
            agreement, numbers = judge(lines)
            began = {"in_progress_at": held.document["in_progress_at"]}
            _update(connection, held, "in_progress", {"agreement": agreement, **began})
            again = update(batch_lines).values(state="open", leased_until=0.0, result=None, result_bytes=0)
            for number in numbers:
                connection.execute(again.where(of.batch_id == batch_id, of.number == number))
        return None if numbers else lines

    def finish(self, batch_id: str, status: Status, expected: Status, retention_s: float, **document: object) -> bool:
        """End a batch all of whose lines are settled, with its files; returns whether this call did."""
        of = batch_lines.c
        is_open = _is_open(batch_id)
        with self._database.read() as connection:  # most calls end here, and no writer waits
            if connection.execute(is_open).first() is not None:
                return False
        with self._database.write() as connection:
            held = _held(connection, batch_id, [expected])
            if held is None or connection.execute(is_open).first() is not None:
                return False
            after = {"finalizing_at": int(time.time()), **_counts(connection, batch_id), **document}
            for kind, state in (("output", "completed"), ("error", "failed")):
                size = select(func.sum(of.result_bytes)).where(of.batch_id == batch_id, of.state == state)
                if num_bytes := connection.scalar(size):
                    now = time.time()
                    file = TenantFile(
                        tenant=held.tenant,
                        purpose="batch_output",
                        filename=f"{batch_id}_{kind}.jsonl",
                        num_bytes=int(num_bytes),
                        created_at=now,
                        expires_at=now + (held.document.get("output_expires_s") or retention_s),
                        batch_id=batch_id,
                        line_state=state,
                    )
                    connection.execute(insert(files).values(asdict(file)))
                    after[f"{kind}_file_id"] = file.file_id
            _update(connection, held, status, after)
        return True

    def forget(self, before: float) -> None:
        """Delete expired files that no batch needs, and ended batches made before a Unix time that have none left."""
        of = batches.c
        in_use = select(of.input_file_id).where(of.status.in_(RUNNING))
        has_file = select(files.c.file_id).where(files.c.batch_id == of.batch_id).exists()
        FileTable(self._database).remove_all((files.c.expires_at <= time.time()) & files.c.file_id.not_in(in_use))
        _delete(self._database, (of.created_at < before) & of.status.not_in(RUNNING) & ~has_file)


def forget_tenant(database: Database, tenant: str) -> None:
    """Delete all files and batches of a tenant, those that run too; raises `StoreUnavailable`."""
    with database.write() as connection:  # from here on no server adds lines or files to them
        connection.execute(update(batches).where(batches.c.tenant == tenant).values(status="cancelled"))
    _delete(database, batches.c.tenant == tenant)
    FileTable(database).remove_all(files.c.tenant == tenant)


def _delete(database: Database, which: ColumnElement[bool]) -> None:
    """Delete batches that have ended, with their lines, in small transactions."""
    with database.read() as connection:
        ids = connection.scalars(select(batches.c.batch_id).where(which)).all()
    for batch_id in ids:
        delete_lines(database, batch_lines.c.batch_id == batch_id)
        with database.write() as connection:
            connection.execute(delete(batches).where(batches.c.batch_id == batch_id))


def _place(line: BatchLine) -> tuple[str, int]:
    """Return what sorts lines: all replicas lock them in one order."""
    return line.batch_id, line.number


def _leased(line: BatchLine) -> ColumnElement[bool]:
    of = batch_lines.c
    is_it = (of.batch_id == line.batch_id) & (of.number == line.number)
    return is_it & (of.lease == line.lease) & (of.state == "open")


def _is_open(batch_id: str) -> Select[int]:
    """Return the query for a line of a batch that is not settled."""
    of = batch_lines.c
    return select(of.number).where(of.batch_id == batch_id, of.state == "open").limit(1)


def _held(connection: Connection, batch_id: str, expected: Sequence[Status]) -> StoredBatch | None:
    """Return a batch in one of these states, locked until the transaction ends."""
    query = select(batches).where(batches.c.batch_id == batch_id, batches.c.status.in_(expected)).with_for_update()
    row = connection.execute(query).first()
    return None if row is None else _batch(row._mapping)


def _update(connection: Connection, held: StoredBatch, status: Status, document: Mapping[str, object]) -> None:
    document = {**held.document, f"{status}_at": int(time.time()), **document}
    values = _columns(replace(held, status=status, document=document))
    connection.execute(update(batches).where(batches.c.batch_id == held.batch_id).values(values))


def _columns(batch: StoredBatch) -> dict[str, object]:
    return {**asdict(batch), "document": json.dumps(batch.document)}


def _batch(row: RowMapping) -> StoredBatch:
    return StoredBatch(**{**row, "document": json.loads(row["document"])})


def _counts(connection: Connection, batch_id: str) -> Mapping[str, object]:
    of = batch_lines.c
    sums = [func.sum(of[name]) for name in USAGE]
    query = select(of.state, func.count(), *sums).where(of.batch_id == batch_id).group_by(of.state)
    lines, usage = Counter[str](), [0] * len(USAGE)
    for state, number, *tokens in connection.execute(query):
        lines[state] = number
        usage = [total + int(value) for total, value in zip(usage, tokens, strict=True)]
    given, cached, answered, reasoned = usage
    return {
        "request_counts": {"total": lines.total(), "completed": lines["completed"], "failed": lines["failed"]},
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": answered,
            "output_tokens_details": {"reasoning_tokens": reasoned},
            "total_tokens": given + answered,
        },
    }
