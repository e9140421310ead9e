"""Contains faults of the engine's own decisions and figures: they cost drafts or figures, never a step.

Proposers are other people's code and are contained one by one (`spec.containment`). What decides about their drafts,
what learns from steps, and what counts and reports them is contained here, for all of it in one way.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, get_args

import structlog

log = structlog.get_logger(__name__)

ContainedPart = Literal[
    "decisions",  # which drafts to make and to verify: the step decodes plainly
    "learning",  # what a step tells about drafts and their cost
    "figures",  # counts and charges of requests, rounds, metrics
]
PARTS: tuple[ContainedPart, ...] = get_args(ContainedPart)
LOG_EVERY_S = 60.0
"""A fault of a part is logged with its trace once in this time, with the number of those that were not."""


class Containment:
    """Belongs to the thread of one engine."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_faults: dict[ContainedPart, int] = dict.fromkeys(PARTS, 0)
        self._clock = clock
        self._logged: dict[ContainedPart, tuple[float, int]] = {}
        """When a fault of a part was logged last, and how many there had been."""

    @contextmanager
    def of(self, part: ContainedPart) -> Iterator[None]:
        """Contain what the block raises, and count it."""
        try:
            yield
        except Exception as error:  # contained: drafts and figures are never worth a request
            self.count(part, error)

    def count(self, part: ContainedPart, error: Exception) -> None:
        """Count a fault that was contained."""
        number = self.num_faults[part] = self.num_faults[part] + 1
        now, (logged_at, before) = self._clock(), self._logged.get(part, (-LOG_EVERY_S, 0))
        if before == 0 or now - logged_at >= LOG_EVERY_S:
            self._logged[part] = (now, number)
            log.error("fault_contained", part=part, number=number - before, exc_info=error)
