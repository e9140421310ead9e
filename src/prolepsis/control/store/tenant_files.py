"""Files that tenants keep in the store: uploaded ones in parts, and those whose content is a batch's results."""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, tuple_

from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import batch_lines, batches, file_parts, files

PART_BYTES = 2**20
RUNNING = ("validating", "in_progress", "cancelling")
"""States of batches that have not ended, and need their file; `finalizing` lasts for a transaction."""
_LINES_OF_PAGE = 200
_UPLOAD_S = 3600.0
"""An upload that has not ended after so long never will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFile:
    """One row of `files`."""

    file_id: str
    tenant: str
    purpose: str
    filename: str
    num_bytes: int | None
    created_at: float
    expires_at: float
    batch_id: str | None = None
    line_state: str | None = None


class FileTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, file: TenantFile) -> None:
        """Keep a file, in place of an earlier row of it."""
        with self._database.write() as connection:
            connection.execute(delete(files).where(files.c.file_id == file.file_id))
            add_file(connection, file)

    def put_part(self, file_id: str, number: int, content: bytes) -> None:
        with self._database.write() as connection:
            connection.execute(insert(file_parts).values(file_id=file_id, number=number, content=content))

    def get(self, tenant: str, file_id: str) -> TenantFile | None:
        """Return a file that has arrived and has not expired."""
        of = files.c
        query = select(files).where(of.file_id == file_id, of.tenant == tenant, *_is_there())
        with self._database.read() as connection:
            row = connection.execute(query).first()
        return None if row is None else TenantFile(**row._mapping)

    def newest(
        self, tenant: str, *, purpose: str | None, after: TenantFile | None, most: int, ascending: bool
    ) -> list[TenantFile]:
        """Return files by their time, the newest first unless `ascending`."""
        of, query = files.c, select(files).where(files.c.tenant == tenant, *_is_there())
        if purpose is not None:
            query = query.where(of.purpose == purpose)
        place = tuple_(of.created_at, of.file_id)
        if after is not None:
            last = (after.created_at, after.file_id)
            query = query.where(place > last if ascending else place < last)
        order = [column.asc() if ascending else column.desc() for column in (of.created_at, of.file_id)]
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(*order).limit(most)).mappings()
            return [TenantFile(**row) for row in rows]

    def held_bytes(self, tenant: str) -> int:
        """Return the size of all files of a tenant."""
        with self._database.read() as connection:
            query = select(func.sum(files.c.num_bytes)).where(files.c.tenant == tenant, *_is_there())
            return int(connection.scalar(query) or 0)

    def user_of(self, file_id: str) -> str | None:
        """Return a batch that still needs a file."""
        of = batches.c
        query = select(of.batch_id).where(of.input_file_id == file_id, of.status.in_(RUNNING)).limit(1)
        with self._database.read() as connection:
            found: str | None = connection.scalar(query)
        return found

    def bytes_of(self, file_id: str, start: int, length: int) -> bytes:
        """Return a piece of an uploaded file."""
        first, of = start // PART_BYTES, file_parts.c
        last = (start + length - 1) // PART_BYTES
        query = select(of.content).where(of.file_id == file_id, of.number.between(first, last)).order_by(of.number)
        with self._database.read() as connection:
            whole = b"".join(connection.scalars(query))
        return whole[start - first * PART_BYTES :][:length]

    def pages(self, file: TenantFile) -> Iterator[bytes]:
        """Yield the content in pieces of bounded size; each one waits for the database."""
        if file.batch_id is None:
            for start in range(0, file.num_bytes or 0, PART_BYTES):
                yield self.bytes_of(file.file_id, start, PART_BYTES)
            return
        of, last = batch_lines.c, 0
        while True:
            is_next = (of.batch_id == file.batch_id) & (of.state == file.line_state) & (of.number > last)
            query = select(of.number, of.result).where(is_next)
            with self._database.read() as connection:
                rows = connection.execute(query.order_by(of.number).limit(_LINES_OF_PAGE)).all()
            if not rows:
                return
            last = rows[-1].number
            yield "".join(f"{row.result}\n" for row in rows).encode()

    def remove(self, file: TenantFile) -> None:
        """Delete a file with its content."""
        with self._database.write() as connection:
            connection.execute(delete(file_parts).where(file_parts.c.file_id == file.file_id))
            connection.execute(delete(files).where(files.c.file_id == file.file_id))
            if file.batch_id is not None:
                of = batch_lines.c
                is_its = (of.batch_id == file.batch_id) & (of.state == file.line_state)
                connection.execute(delete(batch_lines).where(is_its))

    def due(self) -> list[TenantFile]:
        """Return the files that have expired, and those whose upload has broken off."""
        of, now = files.c, time.time()
        is_broken = of.num_bytes.is_(None) & (of.created_at < now - _UPLOAD_S)
        with self._database.read() as connection:
            rows = connection.execute(select(files).where(or_(of.expires_at <= now, is_broken))).mappings()
            return [TenantFile(**row) for row in rows]


def add_file(connection: Connection, file: TenantFile) -> None:
    connection.execute(insert(files).values(asdict(file)))


def _is_there() -> tuple[ColumnElement[bool], ...]:
    return files.c.num_bytes.is_not(None), files.c.expires_at > time.time()
