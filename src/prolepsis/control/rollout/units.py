"""Counts the requests of a rollout by the key that assigns them: the unit of randomisation is the unit of analysis.

Requests of one tenant, or of one conversation, resemble each other. Counted one by one they would look like more
evidence than they are, and a harmless canary would be rolled back because of a few tenants that differ. So a key is one
observation: the means of its requests in the minute that begins with its first one, once for each stage.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import NamedTuple

from prolepsis.core.ended import Assignment

WINDOW_S = 60.0  # time after a key's first request in which its requests are taken together
MAX_COUNTED = 65536  # keys that are remembered as counted; the store remembers them all
MAX_OPEN = 65536  # keys that wait to be counted, which they do for as long as the store is away


def unit_of(sticky: str, weights: str = "") -> str:
    """Return the name of a key as a unit: keys of callers are not stored.

    `weights`: versions of the draft heads in use; with others a key is another unit, as evidence begins again.
    """
    return blake2b(f"{weights}\n{sticky}".encode(), digest_size=8).hexdigest()


class UnitKey(NamedTuple):
    """One unit in one stage; what is measured later than the rest is another observation."""

    rollout_id: str
    run: int
    stage: int
    unit: str
    late: bool


@dataclass(slots=True)
class UnitValues:
    assignment: Assignment
    since: float
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)

    @property
    def means(self) -> Mapping[str, float]:
        """By metric."""
        return {name: total / number for name, (total, number) in self.sums.items()}

    def add(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            total, number = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + value, number + 1


class Units:
    """The units whose minute is not over, and the counted ones. Times in seconds of one clock."""

    def __init__(self) -> None:
        self._open: dict[UnitKey, UnitValues] = {}
        self._counted: dict[UnitKey, float] = {}
        self.num_lost = 0  # requests that were not counted, as too many keys waited

    def add(
        self, assignment: Assignment, values: Mapping[str, float], now: float, *, late: bool, again_s: float = inf
    ) -> None:
        """Process a finished request, unless its unit is counted; `again_s`: after that time it counts again.

        While `MAX_OPEN` keys wait, requests of further keys are lost, regardless of outcome: that favours no arm.
        """
        assert assignment.unit, "the request was assigned by a key"
        key = UnitKey(assignment.rollout_id, assignment.run, assignment.stage, assignment.unit, late)
        if now - self._counted.get(key, -inf) < again_s:
            return
        if key not in self._open and len(self._open) >= MAX_OPEN:
            self.num_lost += 1
            return
        self._open.setdefault(key, UnitValues(assignment, now)).add(values)

    def due(self, now: float) -> Mapping[tuple[str, int, int], Sequence[UnitKey]]:
        """Return the units whose minute is over, by rollout, run and stage."""
        by_stage: dict[tuple[str, int, int], list[UnitKey]] = {}
        for key, values in self._open.items():
            if now - values.since >= WINDOW_S:
                by_stage.setdefault(key[:3], []).append(key)
        return by_stage

    def take(self, keys: Iterable[UnitKey], now: float) -> list[tuple[UnitKey, UnitValues]]:
        taken = [(key, self._open.pop(key)) for key in keys]
        for key, _ in taken:
            self._counted.pop(key, None)
            self._counted[key] = now
        for oldest in list(self._counted)[: max(0, len(self._counted) - MAX_COUNTED)]:
            del self._counted[oldest]
        return taken
