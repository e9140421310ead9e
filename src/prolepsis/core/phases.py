"""Phases of a start: what it is doing, in words, how far that has come, and how long it is likely to take.

What loads names its phases; a context variable carries them to who shows them (a terminal, the log, readiness), so that
no loader hands them on. Where none are watched, they are kept by nobody.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from prolepsis.core.units import duration, size

_SHOWN_S = 0.3  # a phase that took less is not worth a line
_FORESEEN_S = 1.0  # of a phase before its rate says how long it takes
_TICK_S = 0.2
_LOG_EVERY_S = 4.0
_LOADING = "loading"

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Phase:
    """One thing that a start does; the code that does it moves `done` towards `total`."""

    what: str  # such as "reading weights"
    total: int | None = None
    in_bytes: bool = False
    done: int = 0
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def left_s(self) -> float | None:
        """Seconds that it is likely to take yet, by its rate so far; None: not known."""
        if not self.total or not 0 < self.done < self.total or self.seconds < _FORESEEN_S:
            return None
        return self.seconds * (self.total - self.done) / self.done

    @property
    def amount(self) -> str:
        """How much of it is done, such as "3 of 12" or "0.4 of 1.1 GiB"; empty where it does not count."""
        show = size if self.in_bytes else str
        if not self.total:
            return show(self.done) if self.done else ""
        return show(self.total) if self.done >= self.total else f"{show(self.done)} of {show(self.total)}"

    @property
    def reached(self) -> str:
        """What it is, and how much of it is done, such as "reading weights 0.4 of 1.1 GiB"."""
        return f"{self.what} {self.amount}".rstrip()

    def describe(self) -> str:
        """Return all in words, such as "reading weights 0.4 of 1.1 GiB, about 3 s left"."""
        left_s = self.left_s
        return self.reached + ("" if left_s is None else f", about {duration(max(1, round(left_s)))} left")


class PhaseView(Protocol):
    """Shows phases: `ended` is called by the thread that loads, `tick` several times a second by another."""

    def tick(self, phase: Phase) -> None: ...

    def ended(self, phase: Phase) -> None: ...


class LoggedPhases:
    """Log lines: one when a phase has ended, and one every few seconds of a long one."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def tick(self, phase: Phase) -> None:
        if time.monotonic() - self._last >= _LOG_EVERY_S:
            self._last = time.monotonic()
            log.info("starting", phase=phase.describe(), seconds=round(phase.seconds, 1))

    def ended(self, phase: Phase) -> None:
        self._last = time.monotonic()
        log.info("start_phase", phase=phase.reached, seconds=round(phase.seconds, 1))


class Phases:
    """The phases of one start, innermost last: written by the thread that loads, read by any."""

    def __init__(self, view: PhaseView | None = None) -> None:
        self.seconds: dict[str, float] = {}
        """What the phases that have ended took, by their words; one inside another is a part of it."""
        self._open = [Phase(_LOADING)]
        self._view = view

    @property
    def current(self) -> Phase:
        return self._open[-1]

    @contextmanager
    def phase(self, given: Phase) -> Iterator[Phase]:
        self._open.append(given)
        try:
            yield given
        finally:
            self._open.pop()
        self.seconds[given.what] = self.seconds.get(given.what, 0.0) + given.seconds
        if self._view is not None and given.seconds >= _SHOWN_S:
            self._view.ended(given)

    def tick(self) -> None:
        if self._view is not None:
            self._view.tick(self.current)


_watched: ContextVar[Phases | None] = ContextVar("phases", default=None)


def watched_phases() -> Phases | None:
    """Return the phases of the start that this thread is in the course of, or None."""
    return _watched.get()


@contextmanager
def watching(phases: Phases, on_tick: Callable[[Phases], None] = Phases.tick) -> Iterator[None]:
    """Keep the phases that the block names in `phases`; `on_tick` is called several times a second, in a thread."""
    before, over = _watched.get(), threading.Event()
    _watched.set(phases)

    def tick() -> None:
        while not over.wait(_TICK_S):
            on_tick(phases)

    ticking = threading.Thread(target=tick, name="start-phases", daemon=True)
    ticking.start()
    try:
        yield
    finally:
        over.set()
        ticking.join()
        _watched.set(before)  # not reset: a start may be over in another context than it began in


@contextmanager
def phase(what: str, total: int | None = None, *, in_bytes: bool = False) -> Iterator[Phase]:
    """Name what the block does; `total`: how much of it there is, of which the block moves `done` forward."""
    named, phases = Phase(what, total, in_bytes), _watched.get()
    if phases is None:
        yield named
        return
    with phases.phase(named):
        yield named


def advance(done: int) -> None:
    """Move the phase under way forward, where what does a part of it does not know it."""
    if (phases := _watched.get()) is not None:
        phases.current.done += done
