"""Controls that operators set, by kind and name. All replicas follow the store's, and the newest act counts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection, and_, delete, select, tuple_
from sqlalchemy.exc import DataError, IntegrityError

from prolepsis.control.store.database import Database, insert_or_update
from prolepsis.control.store.tables import controls
from prolepsis.core.config import DAY_S
from prolepsis.core.stored_text import UNSTORABLE

ControlKey = str
"""Kind, such as 'kill', and name, with a space between (`control_key`)."""
_REMOVED = ""
"""The value of a control that was removed: its row stays, so that an older act does not bring it back."""
REMOVED_KEPT_S = 90 * DAY_S


@dataclass(frozen=True, slots=True)
class Control:
    """One act: the value that it set, who set it and why."""

    value: str | None
    """None: it was removed."""
    at: Annotated[float, Field(allow_inf_nan=False)]
    """Time of the act in seconds of Unix time, by the clock of the replica where it happened."""
    by: str = ""
    reason: str = ""

    def beats(self, other: "Control | None") -> bool:
        return other is None or self.at > other.at


class ControlTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def is_shared(self) -> bool:
        """Whether other machines may follow it."""
        return self._database.is_kept

    @property
    def name(self) -> str:
        """The database, without its password."""
        file = self._database.file
        return self._database.name if file is None else str(file.resolve())

    def exchange(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, Control]:
        """Set controls as `put` does, and return all."""
        self.put(changes)
        return self.read()

    def put(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, str]:
        """Set those that are newer than those in the store; return those that the database refuses, with its error.

        All are written in one transaction, or each in its own where one is refused.
        """
        if not changes or not self._refusal(changes):
            return {}
        found = {key: self._refusal({key: control}) for key, control in changes.items()}
        return {key: error for key, error in found.items() if error}

    def _refusal(self, changes: Mapping[ControlKey, Control]) -> str:
        """Write the changes; return the kind of the error where their content is the reason of a failure, else ""."""
        if any(UNSTORABLE.search(key) for key in changes):  # it would be kept under another name
            return "UnstorableName"
        try:
            with self._database.write(urgent=True) as connection:
                _put(connection, changes)
        except (DataError, IntegrityError) as error:
            return type(error).__name__
        return ""

    def read(self) -> dict[ControlKey, Control]:
        """Return all controls, removed ones included."""
        with self._database.read() as connection:
            rows = connection.execute(select(controls)).all()
        return {
            control_key(row.kind, row.name): Control(row.value or None, row.changed_at, row.author, row.reason)
            for row in rows
        }


def control_key(kind: str, name: str) -> ControlKey:
    """Return the key of a control; kinds have no spaces."""
    return f"{kind} {name}"


def _put(connection: Connection, changes: Mapping[ControlKey, Control]) -> None:
    """Write what is newer than its row, in place: a row that another replica changes meanwhile is waited for."""
    of = controls.c
    is_old = and_(of.value == _REMOVED, of.changed_at < time.time() - REMOVED_KEPT_S)
    connection.execute(delete(controls).where(is_old, tuple_(of.kind, of.name).not_in(list(map(_parts, changes)))))
    put = insert_or_update(connection, controls)
    new = {name: put.excluded[name] for name in ("value", "changed_at", "author", "reason")}
    key = [of.kind, of.name]
    put = put.on_conflict_do_update(index_elements=key, set_=new, where=put.excluded.changed_at > of.changed_at)
    ordered = sorted(changes.items(), key=itemgetter(0))  # in one order, or two replicas would wait for each other
    connection.execute(put, [_row(key, control) for key, control in ordered])


def _row(key: ControlKey, control: Control) -> dict[str, object]:
    value = _REMOVED if control.value is None else control.value
    kind, name = _parts(key)
    row = {"value": value, "changed_at": control.at, "author": control.by, "reason": control.reason}
    return {"kind": kind, "name": name, **row}


def _parts(key: ControlKey) -> tuple[str, str]:
    kind, _, name = key.partition(" ")
    return kind, name
