"""Baselines of drift and of benefits in the store: a restart continues with what was learned, and replicas share it."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from prolepsis.safety.drift import Key, StreamState
from prolepsis.statistics.change import MeanState
from prolepsis.store.database import Database
from prolepsis.store.learned import LearnedTable
from prolepsis.store.tables import drift_baselines

_BENEFIT = ""
"""Used in place of a version: a benefit belongs to no version."""


@dataclass(frozen=True, slots=True)
class Baselines:
    streams: Mapping[tuple[Key, str], StreamState]
    """By key and version."""
    benefits: Mapping[Key, MeanState]


class BaselineStore:
    """Each call waits for the database and may raise `StoreUnavailable`. The replica that writes last is kept."""

    def __init__(self, database: Database) -> None:
        self._table = LearnedTable(database, drift_baselines)

    def read(self) -> Baselines:
        """Return what was learned, the last written last; nothing of rows of another format."""
        streams: dict[tuple[Key, str], StreamState] = {}
        benefits: dict[Key, MeanState] = {}
        for (proposer, traffic_class, version), text in self._table.read().items():
            key = (proposer, traffic_class)
            try:
                if version == _BENEFIT:
                    benefits[key] = MeanState.from_json(text)
                else:
                    streams[key, version] = StreamState.from_json(text)
            except ValidationError:  # of another version of the software: it is learned again
                continue
        return Baselines(streams, benefits)

    def write(self, learned: Baselines, /) -> None:
        """Keep what changed since the last write."""
        texts = {(*key, version): state.to_json() for (key, version), state in learned.streams.items()}
        self._table.write(texts | {(*key, _BENEFIT): state.to_json() for key, state in learned.benefits.items()})
