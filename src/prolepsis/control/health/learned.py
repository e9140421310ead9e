"""Learned state of the proposers in the store: a restart continues with it, and replicas share it."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Self, TypeVar

import structlog
from pydantic import ValidationError

from prolepsis import __version__
from prolepsis.control.health.drift import Key, StreamState
from prolepsis.control.health.eligibility import DraftFigures, Judged
from prolepsis.control.health.eligibility import Place as FiguresPlace
from prolepsis.control.statistics.change import MeanState
from prolepsis.control.store.learned import LearnedTable, Place
from prolepsis.control.web.feature import Feature
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.json_value import JsonValue, digest_of
from prolepsis.core.stats import AcceptanceState

KEEP_EVERY_S = 60.0  # seconds between two writes of what was learned
_STREAM, _BENEFIT, _FIGURES, _CONDITION, _ACCEPTANCE = "stream", "benefit", "figures", "condition", "acceptance"
_Value = TypeVar("_Value", bound=JsonValue)

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Learned:
    streams: Mapping[tuple[Key, str], StreamState] = field(default_factory=dict)
    """By key and version, the last written last."""
    benefits: Mapping[Key, MeanState] = field(default_factory=dict)  # A benefit belongs to no version
    figures: Mapping[FiguresPlace, DraftFigures] = field(default_factory=dict)
    conditions: Sequence[Judged] = ()
    acceptance: Mapping[tuple[str, str], AcceptanceState] = field(default_factory=dict)
    """By proposer and weights; its buckets are those of this version of the software."""

    @classmethod
    def read(cls, table: LearnedTable) -> Self:
        """Return what was learned, nothing of rows of another format; waits, and may raise `StoreUnavailable`."""
        texts = table.read()
        return cls(
            {((place[1], place[2]), place[3]): state for place, state in _read(texts, _STREAM, StreamState)},
            {(place[1], place[2]): state for place, state in _read(texts, _BENEFIT, MeanState)},
            {place[1:]: figures for place, figures in _read(texts, _FIGURES, DraftFigures)},
            [judged for _, judged in _read(texts, _CONDITION, Judged)],
            {
                (place[1], place[3]): state
                for place, state in _read(texts, _ACCEPTANCE, AcceptanceState)
                if place[2] == __version__
            },
        )

    def write(self, table: LearnedTable) -> None:
        """Store what changed since the last write, and delete conditions that no longer exist; as `read`."""
        table.write(self.texts(), complete=_CONDITION)

    def texts(self) -> Mapping[Place, str]:
        """Return the rows of the table."""
        values: dict[Place, JsonValue] = {
            **{(_STREAM, *key, version): state for (key, version), state in self.streams.items()},
            **{(_BENEFIT, *key, ""): state for key, state in self.benefits.items()},
            **{(_FIGURES, *place): figures for place, figures in self.figures.items()},
            **{(_ACCEPTANCE, name, __version__, weights): state for (name, weights), state in self.acceptance.items()},
            **{(_CONDITION, "", judged.traffic_class, digest_of(judged.asked)): judged for judged in self.conditions},
        }
        return {place: value.to_json() for place, value in values.items()}


def _read(texts: Mapping[Place, str], kind: str, value: type[_Value]) -> Iterator[tuple[Place, _Value]]:
    for place, text in texts.items():
        if place[0] == kind:
            try:
                yield place, value.from_json(text)
            except ValidationError as error:  # of another version of the software, or damaged: it is learned again
                log.warning("learned_unreadable", kind=kind, place=place[1:], error=str(error.errors()[0]["msg"]))


class Keeper(Feature):
    """Restores what earlier runs learned as soon as the store has it, and stores what this one learns.

    Belongs to one event loop. A store that is away is logged once, and so is its return.
    """

    name = "learned"
    period_s = 1.0

    def __init__(
        self,
        table: LearnedTable,
        *,
        restore: Callable[[Learned], None],
        learned: Callable[[], Learned],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._table = table
        self._restore = restore
        self._learned = learned
        self._clock = clock
        self._kept_at = clock()
        self._is_restored = False
        self._is_away = False

    async def tick(self) -> None:
        """Read what earlier runs learned, and store what this one does, when that is due."""
        if not self._is_restored:
            with self._logged():
                self._restore(await asyncio.to_thread(Learned.read, self._table))
                self._is_restored = True
        elif self._clock() - self._kept_at >= KEEP_EVERY_S:
            self._kept_at = self._clock()
            await self.close()

    async def close(self) -> None:
        """Store what was learned for the next start."""
        if self._is_restored:
            with self._logged():
                await asyncio.to_thread(self._learned().write, self._table)

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable as error:
            if not self._is_away:
                log.error("store_failed", feature=self.name, error=str(error))
            self._is_away = True
        else:
            if self._is_away:
                log.info("store_is_back", feature=self.name)
            self._is_away = False
