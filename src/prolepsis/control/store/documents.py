"""Documents of one kind by key, in the table that replicas share: what no query looks into has no table of its own."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Generic, Self, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Insert, UnaryExpression, delete, func, select
from sqlalchemy.sql.base import ReadOnlyColumnCollection

from prolepsis.control.store.database import insert_or_update
from prolepsis.control.store.tables import documents

Value = TypeVar("Value")
Condition = ColumnElement[bool]
Columns = ReadOnlyColumnCollection[str, ColumnElement[Any]]
at, by, key, text, version = (documents.c[name] for name in ("at", "by", "key", "value", "version"))


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[Value]):
    key: str
    value: Value
    at: float = 0.0  # Unix time in seconds
    version: int = 0
    by: str = ""


class Documents(Generic[Value]):
    """The documents of one kind. Calls run in the caller's transaction; writes lock rows in the order of their keys."""

    def __init__(self, kind: str, read: Callable[[str], Value], write: Callable[[Value], str]) -> None:
        """`read` and `write`: from and to the stored text."""
        self._kind = kind
        self._read = read
        self._write = write

    @classmethod
    def of(cls, kind: str, value: type[Value]) -> Self:
        """Return documents of values that pydantic knows, in JSON; lone surrogates are stored as U+FFFD."""
        adapter = TypeAdapter[Value](value)

        def write(value: Value) -> str:
            try:
                return adapter.dump_json(value).decode()
            except ValueError:  # pydantic's of a lone surrogate, which the column replaces
                return json.dumps(adapter.dump_python(value, mode="json"), ensure_ascii=False, separators=(",", ":"))

        return cls(kind, adapter.validate_json, write)

    def get(self, connection: Connection, name: str) -> StoredDocument[Value] | None:
        return next(iter(self.list(connection, key == name)), None)

    def count(self, connection: Connection) -> int:
        return connection.scalar(select(func.count()).where(self.are())) or 0

    def newest_version(self, connection: Connection) -> int:
        """Return the highest version, 0 without documents."""
        return connection.scalar(select(func.max(version)).where(self.are())) or 0

    def list(
        self,
        connection: Connection,
        *which: Condition,
        order: UnaryExpression[Any] | ColumnElement[Any] = key,
        limit: int | None = None,
        hold: bool = False,
    ) -> list[StoredDocument[Value]]:
        """Return documents; `hold`: locked until the transaction ends."""
        query = select(key, text, at, version, by).where(self.are(*which)).order_by(order).limit(limit)
        rows = connection.execute(query.with_for_update() if hold else query)
        return [StoredDocument(row.key, self._read(row.value), row.at, row.version, row.by) for row in rows]

    def by_key(self, connection: Connection, *which: Condition) -> dict[str, Value]:
        return {document.key: document.value for document in self.list(connection, *which)}

    def put(
        self,
        connection: Connection,
        given: Iterable[StoredDocument[Value]],
        *,
        over: Callable[[Columns], Condition] | None = None,
    ) -> Sequence[str]:
        """Write documents and return the keys of those written.

        `over`: the condition for replacing one of the same key, by the columns of the new one; None: it is replaced.
        """
        put = insert_or_update(connection, documents)
        new = {name: put.excluded[name] for name in ("value", "at", "version", "by")}
        where = None if over is None else over(put.excluded)
        put = put.on_conflict_do_update(index_elements=["kind", "key"], set_=new, where=where)
        if over is not None:
            return self._written(connection, put, given)
        if rows := self._rows(given):
            connection.execute(put, rows)
        return [row["key"] for row in rows]

    def add(self, connection: Connection, given: Iterable[StoredDocument[Value]]) -> Sequence[str]:
        """Write documents whose keys are not there; return the keys of those written."""
        return self._written(connection, insert_or_update(connection, documents).on_conflict_do_nothing(), given)

    def swap(self, connection: Connection, given: StoredDocument[Value]) -> bool:
        """Write a document that follows the stored one by one version, or is the first of its key, and say whether."""
        return bool(self.put(connection, [given], over=lambda new: version == new.version - 1))

    def remove(self, connection: Connection, *which: Condition) -> int:
        return connection.execute(delete(documents).where(self.are(*which))).rowcount

    def are(self, *which: Condition) -> Condition:
        """Return the condition that rows of the table are of this kind, and what is given besides."""
        where = documents.c.kind == self._kind
        for condition in which:
            where &= condition
        return where

    def _written(
        self, connection: Connection, statement: Insert, given: Iterable[StoredDocument[Value]]
    ) -> Sequence[str]:
        rows = self._rows(given)
        return connection.scalars(statement.returning(key), rows).all() if rows else []

    def _rows(self, given: Iterable[StoredDocument[Value]]) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "kind": self._kind,
                "key": document.key,
                "value": self._write(document.value),
                "at": document.at,
                "version": document.version,
                "by": document.by,
            }
            for document in sorted(given, key=attrgetter("key"))
        ]


def begins(prefix: str) -> Condition:
    """Return the condition of the keys that begin so; the primary key finds them."""
    return key.between(prefix, f"{prefix}\U0010ffff")
