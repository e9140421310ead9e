"""Looks after the engine's thread from another one: calls of proposers that are overdue, steps that do not end."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from prolepsis.core.errors import EngineDead
from prolepsis.engine.drafting.call_watch import CallWatch, WatchedCall

_WORKING = 0.001
"""Of the time after which a step is stuck: with so much processor time in it, a step is at work, and not waiting."""
_PERIOD_S = 0.02
_SUSPENDED_S = 1.0
"""A sleep of the watchdog that takes this much longer than asked for: the process, or its machine, stood still."""

log = structlog.get_logger(__name__)


def processor_clock() -> Callable[[], float]:
    """Return a clock of the processor time of the thread that asks, for others to read while it lives."""
    return partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))


@dataclass(slots=True)
class StepWatch:
    """Since when the engine works: on a step, from its first message to its events, or on a message outside of one.

    Where the processor computes, a step counts by work: on a loaded machine a sound one takes as long as others let it.
    Written by the engine's thread, `note_progress` and `discount` by the watchdog's; read by any.
    """

    stuck_after_s: float | None = None  # seconds after which a step will not end any more; None: never
    clock: Callable[[], float] = field(kw_only=True)
    processor: Callable[[], Callable[[], float]] | None = None
    """`processor_clock`; None: the thread waits for a device, and only time counts."""
    began: float | None = None
    busy: threading.Event = field(default_factory=threading.Event)  # clear while the engine waits for messages
    _suspended: tuple[float, float] = (0.0, 0.0)
    """Beginning of a step, and how many seconds of it the process stood still."""
    _worked: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Beginning of a step, when in it it was last seen at work, and the processor time that it had used by then."""
    _used: Callable[[], float] = float
    _used_before: float = 0.0

    def begin(self) -> None:
        if self.processor is not None:
            self._used = self.processor()
            self._used_before = self._used()
        self.began = self.clock()
        if not self.busy.is_set():
            self.busy.set()

    def end(self) -> None:
        """It ended. A thread that died or was replaced does not get here and leaves it running."""
        self.began = None

    def rest(self) -> None:
        """It ended, and the engine waits for messages."""
        self.began = None
        self.busy.clear()

    def discount(self, seconds: float) -> None:
        """The process stood still for so long; called by the watchdog."""
        began = self.began
        if began is not None:
            self._suspended = (began, self._suspended_s(began) + min(seconds, self.clock() - began))

    @property
    def age_s(self) -> float:
        """Seconds that count against the step, 0 between steps; without those in which the process stood still.

        With a processor's clock they are those that it has computed, or those since it was last seen at work.
        """
        began = self.began
        if began is None:
            return 0.0
        age = self.clock() - began - self._suspended_s(began)
        step, worked_at, _ = self._worked
        return max(self._used_s, age - (worked_at if step == began else 0.0))

    @property
    def _used_s(self) -> float:
        with suppress(OSError):  # the thread is gone
            return self._used() - self._used_before
        return 0.0

    def note_progress(self) -> None:
        """Note whether the step has worked since the last call."""
        began, used, limit = self.began, self._used_s, self.stuck_after_s
        if began is None or limit is None:
            return
        step, _, before = self._worked
        if used - (before if step == began else 0.0) > _WORKING * limit:
            self._worked = (began, self.clock() - began - self._suspended_s(began), used)

    def _suspended_s(self, began: float) -> float:
        step, seconds = self._suspended
        return seconds if step == began else 0.0

    @property
    def detail(self) -> str:
        """Why the engine is not ready: a step takes a third of the time after which it is stuck; empty if not."""
        limit = self.stuck_after_s
        is_slow = limit is not None and self.age_s > limit / 3
        return f"a step has been running for {self.age_s:.1f} s" if is_slow else ""

    @property
    def stuck(self) -> EngineDead | None:
        """The error of a step that will not end; None if it may."""
        limit = self.stuck_after_s
        if limit is None or self.age_s <= limit:
            return None
        return EngineDead(f"the engine ended: a step has not ended after {self.age_s:.1f} s")


class Watchdog:
    """Checks until it is stopped; a thread of its own does so while the engine is busy."""

    def __init__(
        self,
        calls: CallWatch,
        steps: StepWatch,
        *,
        replace: Callable[[WatchedCall], None],
        give_up: Callable[[EngineDead], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`replace` starts another thread for the engine, `give_up` ends its requests; both are called from here.

        `clock` measures the watchdog's own sleep: work is not late for time in which the process stood still.
        """
        self._calls = calls
        self._clock = clock
        self._steps = steps
        self._replace = replace
        self._give_up = give_up
        self._stopped = threading.Event()
        self.gave_up = False  # a step was stuck: the engine's thread is not waited for any more

    def check(self) -> None:
        """Replace the engine's thread if its call is overdue; end all requests if its step is stuck."""
        self._steps.note_progress()
        call = self._calls.take_overdue()
        if call is not None:
            self._replace(call)
        elif not self.gave_up and (error := self._steps.stuck) is not None:
            self.gave_up = True
            log.error("engine_stuck", error=str(error))
            self._give_up(error)

    def watch(self) -> None:
        """Check again and again while the engine is busy, until `stop`; the body of a thread."""
        while not self._stopped.is_set():
            self._steps.busy.wait()
            self.check()
            self.sleep(self._stopped.wait)

    def sleep(self, wait: Callable[[float], object]) -> None:
        """Wait for a period, and discount what it took too long."""
        began = self._clock()
        wait(_PERIOD_S)
        late_s = self._clock() - began - _PERIOD_S
        if late_s > _SUSPENDED_S:
            log.warning("process_suspended", seconds=round(late_s, 1))
            self._steps.discount(late_s)
            self._calls.discount(late_s)

    def stop(self) -> None:
        self._stopped.set()
        self._steps.busy.set()
