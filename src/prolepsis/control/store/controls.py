"""Controls that operators set, by kind and name. All replicas follow the store's, and the newest act counts."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from sqlalchemy.exc import DataError, IntegrityError

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import StoreTable
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.core.config import DAY_S
from prolepsis.core.stored_text import UNSTORABLE

ControlKey = str  # kind, such as 'kill', and name, with a space between (`control_key`)
REMOVED_KEPT_S = 90 * DAY_S
"""A control that was removed stays, without a value, so that an older act does not bring it back."""


@dataclass(frozen=True, slots=True)
class Control:
    """One act: the value that it set, who set it and why."""

    value: str | None  # None: it was removed
    at: Annotated[float, Field(allow_inf_nan=False)]
    """Time of the act in seconds of Unix time, by the clock of the replica where it happened."""
    by: str = ""
    reason: str = ""

    def beats(self, other: "Control | None") -> bool:
        return other is None or self.at > other.at


_CONTROLS = Documents.of("control", Control)
_IS_REMOVED = of.text.startswith('{"value":null,')


class ControlTable(StoreTable):
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
        refusals = {key: self._refusal({key: control}) for key, control in changes.items()}
        return {key: error for key, error in refusals.items() if error}

    def _refusal(self, changes: Mapping[ControlKey, Control]) -> str:
        """Write the changes; return the kind of the error where their content is the reason of a failure, else ""."""
        if any(UNSTORABLE.search(key) for key in changes):  # it would be kept under another name
            return "UnstorableName"
        given = [StoredDocument(key, control, control.at, by=control.by) for key, control in changes.items()]
        is_old = _IS_REMOVED & (of.at < time.time() - REMOVED_KEPT_S) & of.key.not_in([*changes])
        try:
            with self._database.write(urgent=True) as connection:
                _CONTROLS.remove(connection, is_old)
                _CONTROLS.put(connection, given, over=lambda new: new.at > of.at)
        except (DataError, IntegrityError) as error:
            return type(error).__name__
        return ""

    def read(self) -> dict[ControlKey, Control]:
        """Return all controls, removed ones included."""
        with self._database.read() as connection:
            return _CONTROLS.by_key(connection)


def control_key(kind: str, name: str) -> ControlKey:
    """Return the key of a control; kinds have no spaces."""
    return f"{kind} {name}"
