"""Baselines of drift and of benefits in the store: a restart goes on with what was learnt, and replicas share it."""

import time
from collections.abc import Mapping

from pydantic import ValidationError
from sqlalchemy import delete, insert, select, tuple_

from prolepsis.core.config import DAY_S
from prolepsis.safety.drift import Key, StreamState
from prolepsis.statistics.change import MeanState
from prolepsis.store.database import Database
from prolepsis.store.tables import drift_baselines

_BENEFIT = ""
"""In place of a version: a benefit belongs to none."""
_KEPT_S = 90 * DAY_S  # after the last request of a version


class BaselineStore:
    """Each call waits for the database and may raise `StoreUnavailable`. The replica that writes last is kept."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._written: dict[tuple[str, str, str], str] = {}

    def read(self) -> tuple[Mapping[tuple[Key, str], StreamState], Mapping[Key, MeanState]]:
        """Return what streams had learnt, by key and version, and the benefits; nothing of rows of another format."""
        of = drift_baselines.c
        with self._database.read() as connection:
            rows = connection.execute(select(of.proposer, of.traffic_class, of.version, of.state)).all()
        streams: dict[tuple[Key, str], StreamState] = {}
        benefits: dict[Key, MeanState] = {}
        for proposer, traffic_class, version, text in rows:
            key = (proposer, traffic_class)
            self._written[proposer, traffic_class, version] = text
            try:
                if version == _BENEFIT:
                    benefits[key] = MeanState.from_json(text)
                else:
                    streams[key, version] = StreamState.from_json(text)
            except ValidationError:  # of another version of the software: it is learnt again
                continue
        return streams, benefits

    def write(self, streams: Mapping[tuple[Key, str], StreamState], benefits: Mapping[Key, MeanState]) -> None:
        """Keep what changed since the last write."""
        texts = {(*key, version): state.to_json() for (key, version), state in streams.items()}
        texts |= {(*key, _BENEFIT): state.to_json() for key, state in benefits.items()}
        changed = {place: text for place, text in texts.items() if self._written.get(place) != text}
        if not changed:
            return
        of, now = drift_baselines.c, time.time()
        names = ("proposer", "traffic_class", "version")
        rows = [dict(zip(names, place, strict=True), state=text, kept_at=now) for place, text in changed.items()]
        with self._database.write() as connection:
            ours = tuple_(of.proposer, of.traffic_class, of.version).in_(list(changed))
            connection.execute(delete(drift_baselines).where(ours | (of.kept_at < now - _KEPT_S)))
            connection.execute(insert(drift_baselines), rows)
        self._written |= changed
