"""Controls in the store: small values by kind and name that all replicas follow."""

import time
from collections.abc import Mapping

from sqlalchemy import delete, insert, select

from prolepsis.store.database import Database
from prolepsis.store.tables import controls

ControlKey = tuple[str, str]
"""Kind, such as 'kill', and name."""


class ControlTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def name(self) -> str:
        """The database, for people."""
        return self._database.name

    def exchange(self, changes: Mapping[ControlKey, str | None]) -> dict[ControlKey, str]:
        """Set the values of `changes` (None removes one), all or none of them; return all values."""
        if changes:
            self._write(changes)
        with self._database.read() as connection:
            rows = connection.execute(select(controls.c.kind, controls.c.name, controls.c.value)).all()
        return {(kind, name): value for kind, name, value in rows}

    def _write(self, changes: Mapping[ControlKey, str | None]) -> None:
        now = time.time()
        with self._database.write() as connection:
            for (kind, name), value in changes.items():
                connection.execute(delete(controls).where(controls.c.kind == kind, controls.c.name == name))
                if value is not None:
                    row = {"kind": kind, "name": name, "value": value, "changed_at": now}
                    connection.execute(insert(controls), [row])
