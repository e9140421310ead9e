"""State learned from traffic, in the store: a restart continues with it, and replicas share it."""

import json
import time
from collections.abc import Callable, Mapping

from prolepsis.control.store import documents as of
from prolepsis.control.store.database import Database
from prolepsis.control.store.documents import Documents, StoredDocument
from prolepsis.core.config import DAY_S
from prolepsis.core.json_value import canonical

_KEPT_S = 90 * DAY_S  # after a row was written last
_LEARNED = Documents("learned", str, str)

Place = tuple[str, str, str, str]  # kind, proposer, traffic class and version; as a JSON list it is the key


class LearnedTable:
    """Texts by place. The replica that writes last is kept.

    Each call waits for the database and may raise `StoreUnavailable`; none belongs on an event loop.
    """

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._written: dict[Place, tuple[str, float]] = {}
        """Texts as they were last read or written, and when they were written."""

    def read(self) -> Mapping[Place, str]:
        """Return all texts, the last written last."""
        with self._database.read() as connection:
            rows = _LEARNED.list(connection, order=of.at)
        written: dict[Place, tuple[str, float]] = {tuple(json.loads(row.key)): (row.value, row.at) for row in rows}
        self._written |= written
        return {place: text for place, (text, _) in written.items()}

    def write(self, texts: Mapping[Place, str], *, complete: str | None = None) -> None:
        """Keep what changed since the last write, and delete what is old.

        `complete`: rows of this kind are deleted if `texts` lacks them. Those that it has may stay as they are
        for longer than old rows are kept, so they are written again in time.
        """
        now = self._clock()
        oldest = now - _KEPT_S / 2
        changed = {
            place: (text, now)
            for place, text in texts.items()
            if (known := self._written.get(place)) is None
            or known[0] != text
            or (place[0] == complete and known[1] < oldest)
        }
        gone = [place for place in self._written if place[0] == complete and place not in texts]
        if not changed and not gone:
            return
        with self._database.write() as connection:
            is_gone = of.key.in_([canonical(place) for place in gone]) | (of.at < now - _KEPT_S)
            _LEARNED.remove(connection, is_gone)
            _LEARNED.put(
                connection, [StoredDocument(canonical(place), text, now) for place, (text, _) in changed.items()]
            )
        self._written = {place: text for place, text in self._written.items() if place not in gone} | changed
