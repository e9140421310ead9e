"""Files that tenants keep in the store: uploaded ones in parts, and those whose content is a batch's results."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from uuid import uuid4

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Row, Select, Table, delete, insert, select, tuple_

from prolepsis.control.store.database import Database
from prolepsis.control.store.tables import batch_lines, batches, file_parts, files

PART_BYTES = 2**20
RUNNING = ("validating", "in_progress", "cancelling")
"""States of batches that have not ended, and need their file; `finalizing` lasts for a transaction."""
_LINES_OF_PAGE = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantFile:
    """One row of `files`."""

    file_id: str = field(default_factory=lambda: f"file-{uuid4().hex[:24]}")
    tenant: str
    purpose: str
    filename: str
    num_bytes: int
    created_at: float
    expires_at: float
    batch_id: str | None = None
    line_state: str | None = None


class FileTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, file: TenantFile, parts: Iterable[bytes]) -> None:
        """Keep a file; each part but the last has `PART_BYTES`."""
        with self._database.write() as connection:
            add_file(connection, file)
            for number, content in enumerate(parts):
                connection.execute(insert(file_parts).values(file_id=file.file_id, number=number, content=content))

    def get(self, tenant: str, file_id: str) -> TenantFile | None:
        """Return a file that has not expired."""
        found = self._rows(_there(tenant).where(files.c.file_id == file_id))
        return found[0] if found else None

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
        return sum(file.num_bytes for file in self._rows(_there(tenant)))

    def _rows(self, query: Select[*tuple[object, ...]]) -> list[TenantFile]:
        with self._database.read() as connection:
            return [TenantFile(**row) for row in connection.execute(query).mappings()]

    def user_of(self, file_id: str) -> str | None:
        """Return a batch that still needs a file."""
        of = batches.c
        query = select(of.batch_id).where(of.input_file_id == file_id, of.status.in_(RUNNING)).limit(1)
        with self._database.read() as connection:
            found: str | None = connection.scalar(query)
        return found

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
        query = select(of.number, of.result).where(of.batch_id == file.batch_id, of.state == file.line_state)
        query = query.order_by(of.number).limit(_LINES_OF_PAGE)
        while True:
            with self._database.read() as connection:
                rows = list(connection.execute(query.where(of.number > (rows[-1].number if rows else 0))))
            if not rows:
                return
            yield "".join(f"{row.result}\n" for row in rows).encode()

    def remove(self, file: TenantFile) -> None:
        """Delete a file with its content."""
        with self._database.write() as connection:
            delete_files(connection, files.c.file_id == file.file_id)


def add_file(connection: Connection, file: TenantFile) -> None:
    connection.execute(insert(files).values(asdict(file)))


def delete_files(connection: Connection, which: ColumnElement[bool]) -> None:
    """Delete files with their content."""
    ids = select(files.c.file_id).where(which)
    results = select(files.c.batch_id, files.c.line_state).where(which, files.c.batch_id.is_not(None))
    connection.execute(delete(file_parts).where(file_parts.c.file_id.in_(ids)))
    connection.execute(delete(batch_lines).where(tuple_(batch_lines.c.batch_id, batch_lines.c.state).in_(results)))
    connection.execute(delete(files).where(which))


def page_of(
    query: Select[*tuple[object, ...]],
    table: Table,
    name: ColumnElement[str],
    after: str | None,
    most: int,
    *,
    ascending: bool = False,
) -> Select[*tuple[object, ...]]:
    """Return the query of the next page of a list by time, from behind the row that is called `after`."""
    place = (table.c.created_at, name)
    if after is not None:
        last = select(*place).where(name == after).scalar_subquery()
        query = query.where(tuple_(*place) > last if ascending else tuple_(*place) < last)
    return query.order_by(*(column.asc() if ascending else column.desc() for column in place)).limit(most)


def _there(tenant: str | None) -> Select[*tuple[object, ...]]:
    """Return the query of the files of a tenant, or of all, that have not expired."""
    query = select(files).where(files.c.expires_at > time.time())
    return query if tenant is None else query.where(files.c.tenant == tenant)
