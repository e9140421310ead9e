"""Controls in the store: small values by kind and name that all replicas follow. The newest act counts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, and_, delete, insert, select, update

from prolepsis.core.config import DAY_S
from prolepsis.store.database import Database
from prolepsis.store.tables import controls

ControlKey = tuple[str, str]
"""Kind, such as 'kill', and name."""
_REMOVED = ""
"""The value of a control that was removed: its row stays, so that an older act does not bring it back."""
_REMOVED_KEPT_S = 90 * DAY_S


@dataclass(frozen=True, slots=True)
class Control:
    value: str | None
    """None: it was removed."""
    at: float
    """Time of the act in seconds of Unix time, by the clock of the replica where it happened."""

    def beats(self, other: "Control | None") -> bool:
        return other is None or self.at > other.at


class ControlTable:
    """Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @property
    def name(self) -> str:
        """The database, for people."""
        return self._database.name

    def exchange(self, changes: Mapping[ControlKey, Control]) -> dict[ControlKey, Control]:
        """Set the controls of `changes` that are newer than those in the store, in one transaction; return all."""
        if changes:
            with self._database.write() as connection:
                for key in sorted(changes):  # in one order, or two replicas would wait for each other
                    _put(connection, key, changes[key])
        with self._database.read() as connection:
            rows = connection.execute(select(controls)).all()
        return {(row.kind, row.name): Control(row.value or None, row.changed_at) for row in rows}


def _put(connection: Connection, key: ControlKey, control: Control) -> None:
    of, (kind, name) = controls.c, key
    ours = and_(of.kind == kind, of.name == name)
    known_at = connection.scalar(select(of.changed_at).where(ours).with_for_update())
    if known_at is not None and known_at >= control.at:
        return
    too_old = and_(of.value == _REMOVED, of.changed_at < time.time() - _REMOVED_KEPT_S)
    connection.execute(delete(controls).where(too_old, ~ours))
    new = {"value": _REMOVED if control.value is None else control.value, "changed_at": control.at}
    if known_at is None:
        connection.execute(insert(controls), [{"kind": kind, "name": name, **new}])
    else:  # updated, not replaced: another replica that waits for a row finds nothing where it was deleted
        connection.execute(update(controls).where(ours).values(new))
