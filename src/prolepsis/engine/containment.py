"""Contains faults of the engine's own decisions and figures: they cost drafts or figures, never a step.

Proposers are other people's code and are contained one by one (`engine.drafting.containment`). What decides about
their drafts, what learns from steps, and what counts and reports them is contained here, for all of it in one way.
"""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Literal, get_args

import structlog

log = structlog.get_logger(__name__)

ContainedPart = Literal[
    "decisions",  # which drafts to make and to verify: the step decodes plainly
    "learning",  # what a step shows about drafts and their cost
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
        self._blocks = {part: _Block(self, part) for part in PARTS}

    def of(self, part: ContainedPart) -> "_Block":
        """Return what contains the faults of a `with` block, and counts them."""
        return self._blocks[part]

    def count(self, part: ContainedPart, error: Exception) -> None:
        number = self.num_faults[part] = self.num_faults[part] + 1
        now, (logged_at, before) = self._clock(), self._logged.get(part, (-LOG_EVERY_S, 0))
        if before == 0 or now - logged_at >= LOG_EVERY_S:
            self._logged[part] = (now, number)
            log.error("fault_contained", part=part, number=number - before, exc_info=error)


class _Block:
    """Holds nothing of one block, so that all blocks of a part share it: steps enter it for each of their rows."""

    def __init__(self, contained: Containment, part: ContainedPart) -> None:
        self._contained = contained
        self._part = part

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        self._contained.count(self._part, error)  # contained: drafts and figures are never worth a request
        return True
