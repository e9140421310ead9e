"""The streams of one engine."""

from collections.abc import Callable, Iterable, Mapping

from prolepsis.control.drift.alarm import DriftAlarm
from prolepsis.control.drift.settings import DriftSettings
from prolepsis.control.drift.stream import Stream
from prolepsis.core.slice_counts import SliceCounts

Key = tuple[str, str]
"""Proposer and slice."""


class DriftBoard:
    """A stream for each pair that the engine counts, begun anew where its proposer's version changes."""

    def __init__(self, settings: DriftSettings | None = None) -> None:
        self._settings = settings or DriftSettings()
        self._streams: dict[Key, Stream] = {}

    @property
    def streams(self) -> Mapping[Key, Stream]:
        return self._streams

    def observe(self, counts: Iterable[SliceCounts], version_of: Callable[[str], str], now: float) -> list[DriftAlarm]:
        """Take in the engine's counts; return what is noticed. `version_of` says what a proposer's name stands for."""
        alarms: list[DriftAlarm] = []
        for reading in counts:
            key = (reading.proposer, reading.slice)
            stream, version = self._streams.get(key), version_of(reading.proposer)
            if stream is None or stream.version != version or reading.num_judged < stream.seen.num_judged:
                self._streams[key] = Stream(reading, version, now, self._settings)
            elif reading.num_judged > stream.seen.num_judged:
                alarms += stream.observe(reading, now)
        return alarms

    def reset(self, proposer: str, slice_name: str, now: float) -> Stream:
        """Begin one anew, as after a deployment; raises `KeyError` where there is no such stream."""
        stream = self._streams[proposer, slice_name]
        fresh = self._streams[proposer, slice_name] = Stream(stream.seen, stream.version, now, self._settings)
        return fresh
