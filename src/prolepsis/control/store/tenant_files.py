"""Files that tenants keep in the store: uploaded ones in parts, and those whose content is a batch's results."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, delete, func, insert, select, update

from prolepsis.control.store.database import Database, StoreTable, hold
from prolepsis.control.store.pages import first_of, page_of
from prolepsis.control.store.tables import batch_lines, batches, file_parts, files
from prolepsis.core.errors import StoreConflict, StoreUnavailable

PART_BYTES = 2**20
MOST_FILES = 10_000  # files of a tenant
_UNFINISHED = "unfinished"
"""The `line_state` of a file that is not whole: it has room taken, and expires soon unless its writer goes on."""
_UNFINISHED_S = 60.0
RUNNING = ("validating", "in_progress", "cancelling")
"""States of batches that have not ended, and need their file; `finalizing` lasts for a transaction."""
_LINES_OF_PAGE = 200
_ROWS_A_DELETION = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFile:
    file_id: str = field(default_factory=lambda: f"file-{uuid4().hex[:24]}")
    tenant: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: float
    expires_at: float
    batch_id: str | None = None
    line_state: str | None = None


class FileTable(StoreTable):
    def put(self, file: TenantFile, parts: Iterable[bytes], *, most_bytes: float = math.inf) -> bool:
        """Keep a file; each part but the last has `PART_BYTES`. Returns False where the tenant's files have no room.

        Each part has a transaction of its own, and the file is there when all are. Raises `StoreConflict` where it is
        deleted meanwhile, with its tenant.
        """
        with self._database.write() as connection:
            hold(connection, f"files {file.tenant}")
            size, number = _held(connection, file.tenant)
            if number >= MOST_FILES or size + file.num_bytes > most_bytes:
                return False
            begun = replace(file, line_state=_UNFINISHED, expires_at=time.time() + _UNFINISHED_S)
            connection.execute(insert(files).values(asdict(begun)))
        own = (files.c.file_id == file.file_id) & (files.c.line_state == _UNFINISHED) & (files.c.expires_at > 0)
        try:
            for number, content in enumerate(parts):
                self._database.give_way()
                with self._database.write() as connection:
                    self._go_on(connection, own, expires_at=time.time() + _UNFINISHED_S)
                    part = {"file_id": file.file_id, "number": number, "content": content}
                    connection.execute(insert(file_parts).values(part))
            with self._database.write() as connection:
                self._go_on(connection, own, expires_at=file.expires_at, line_state=file.line_state)
        except BaseException:
            with suppress(StoreUnavailable):  # it expires
                self.remove(file)
            raise
        return True

    def _go_on(self, connection: Connection, own: ColumnElement[bool], **values: object) -> None:
        if connection.execute(update(files).where(own).values(values)).rowcount == 0:
            raise StoreConflict("The file was deleted before it was whole.")

    def get(self, tenant: str, file_id: str) -> TenantFile | None:
        """Return a file that has not expired."""
        rows = self._rows(_there(tenant).where(files.c.file_id == file_id))
        return rows[0] if rows else None

    def newest(
        self, tenant: str, *, purpose: str | None, after: str | None, most: int, ascending: bool = False
    ) -> list[TenantFile]:
        """Return files by their time, the newest first unless `ascending`."""
        query = _there(tenant) if purpose is None else _there(tenant).where(files.c.purpose == purpose)
        return self._rows(page_of(query, files, files.c.file_id, after, most, ascending=ascending))

    def of_purposes(self, purpose: str) -> list[TenantFile]:
        """Return the files of all tenants whose purpose begins so, the oldest first."""
        of = files.c
        query = _there(None).where(of.purpose.startswith(purpose, autoescape=True))
        return self._rows(query.order_by(of.created_at, of.file_id))

    def held_bytes(self, tenant: str) -> int:
        """Return the size of all files of a tenant."""
        with self._database.read() as connection:
            return _held(connection, tenant)[0]

    def _rows(self, query: Select[*tuple[object, ...]]) -> list[TenantFile]:
        with self._database.read() as connection:
            return [TenantFile(**row) for row in connection.execute(query).mappings()]

    def user_of(self, file_id: str) -> str | None:
        """Return a batch that still needs a file."""
        of = batches.c
        query = select(of.batch_id).where(of.input_file_id == file_id, of.status.in_(RUNNING)).limit(1)
        with self._database.read() as connection:
            user: str | None = connection.scalar(query)
        return user

    def bytes_of(self, file_id: str, start: int, length: int) -> bytes:
        """Return a piece of an uploaded file."""
        of, (first, at) = file_parts.c, divmod(start, PART_BYTES)
        begin = sa.case((of.number == first, at + 1), else_=1)
        query = select(sa.func.substr(of.content, begin, length, type_=sa.LargeBinary)).order_by(of.number)
        query = query.where(of.file_id == file_id, of.number.between(first, (start + length - 1) // PART_BYTES))
        with self._database.read() as connection:
            return b"".join(connection.scalars(query))[:length]

    def pages(self, file: TenantFile) -> Iterator[bytes]:
        """Yield the content in pieces of bounded size; each one waits for the database."""
        if file.batch_id is None:
            for start in range(0, file.num_bytes, PART_BYTES):
                yield self.bytes_of(file.file_id, start, PART_BYTES)
            return
        of, rows = batch_lines.c, list[Row[tuple[int, str]]]()
        while True:
            left = _results(file) & (of.number > (rows[-1].number if rows else 0))
            page = first_of(of.number, of.result_bytes, left, most_bytes=PART_BYTES, most=_LINES_OF_PAGE)
            query = select(of.number, of.result).where(_results(file), of.number.in_(page)).order_by(of.number)
            with self._database.read() as connection:
                rows = list(connection.execute(query))
            if not rows:
                return
            yield "".join(f"{row.result}\n" for row in rows).encode()

    def remove(self, file: TenantFile) -> None:
        """Delete a file with its content, in small transactions; it is gone from the first one on."""
        self.remove_all(files.c.file_id == file.file_id)

    def remove_all(self, which: ColumnElement[bool]) -> None:
        """Delete files as `remove` does."""
        with self._database.write() as connection:
            connection.execute(update(files).where(which).values(expires_at=0.0))
        for file in self._rows(select(files).where(which)):
            of = file_parts.c
            _delete_rows(self._database, file_parts, func.length(of.content), of.file_id == file.file_id)
            if file.batch_id is not None:
                delete_lines(self._database, _results(file))
            with self._database.write() as connection:
                connection.execute(delete(files).where(files.c.file_id == file.file_id))


def delete_lines(database: Database, which: ColumnElement[bool]) -> None:
    """Delete lines of one batch with their results, in small transactions."""
    _delete_rows(database, batch_lines, batch_lines.c.result_bytes, which)


def _delete_rows(database: Database, table: Table, size: ColumnElement[int], which: ColumnElement[bool]) -> None:
    some = first_of(table.c.number, size, which, most_bytes=PART_BYTES, most=_ROWS_A_DELETION)
    database.repeat(
        lambda connection: connection.execute(delete(table).where(which, table.c.number.in_(some))).rowcount
    )


def _results(file: TenantFile) -> ColumnElement[bool]:
    """Return which lines are the content of a file."""
    return (batch_lines.c.batch_id == file.batch_id) & (batch_lines.c.state == file.line_state)


def _held(connection: Connection, tenant: str) -> tuple[int, int]:
    """Return the size and the number of a tenant's files, of those too that are not whole yet."""
    of = files.c
    query = select(func.coalesce(func.sum(of.num_bytes), 0), func.count())
    size, number = connection.execute(query.where(of.tenant == tenant, of.expires_at > time.time())).one()
    return int(size), number


def _there(tenant: str | None) -> Select[*tuple[object, ...]]:
    """Return the query of the files of a tenant, or of all, that have not expired."""
    of = files.c
    query = select(files).where(of.expires_at > time.time(), func.coalesce(of.line_state, "") != _UNFINISHED)
    return query if tenant is None else query.where(files.c.tenant == tenant)
