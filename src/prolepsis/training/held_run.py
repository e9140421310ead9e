"""The run while a process trains for it: its lease, its pauses and its budget."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Self

from prolepsis.control.learning.machine import LearningEvent, Taken, step
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.lineage import RunTable
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.learning import LearningRun
from prolepsis.engine.native.processor import default_threads

LEASE_S = 300.0  # a run whose process is gone is free after it
_RENEW_S, _LOOK_S = 60.0, 2.0


class RunLost(Exception):
    """The run is another process's by now, or has ended."""


class BudgetSpent(Exception):
    """The run's processor seconds are spent."""


class HeldRun:
    """Renews the lease by a thread of its own, inside `with`. Each step of the run is compared with what is stored."""

    def __init__(
        self,
        runs: RunTable,
        run: LearningRun,
        *,
        clock: Callable[[], float] = time.monotonic,
        processor: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`run` is held by this process. `clock` and `processor` count seconds."""
        self.run = run
        self.terms = LearningTerms.model_validate_json(json.dumps(dict(run.terms)))
        self.progress = run.progress
        self._runs, self._clock, self._processor, self._sleep = runs, clock, processor, sleep
        self._spent_before = run.processor_s - processor()
        self._checked, self._used = clock(), processor()
        self._paused_until = self._clock()
        self._is_lost = False
        self._left = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        self._thread.join()

    @property
    def processor_s(self) -> float:
        """Processor seconds of the run so far, those of other processes before this one too."""
        return self._spent_before + self._processor()

    def look(self) -> None:
        """Read whether the run pauses or is lost, and renew the lease where that is due."""
        try:
            stored, now = self._runs.read(), self._runs.now()
            self._paused_until = self._clock() + stored.paused_until - now
            if not self._is_mine(stored):
                self._is_lost = True
            elif stored.leased_until < now + LEASE_S - _RENEW_S:
                self.step(Taken(stored.holder, now + LEASE_S))
        except StoreUnavailable:  # the lease lasts for minutes, and the next look comes before
            return
        except RunLost:
            self._is_lost = True

    def check(self) -> None:
        """Wait while requests run beside the run and while it had its share; called between two pieces of work.

        Raises `RunLost` and `BudgetSpent`.
        """
        cores = self.terms.share * default_threads()
        rest = self._checked + (self._processor() - self._used) / cores
        while (wait := max(rest, self._paused_until) - self._clock()) > 0.0 and not self._is_lost:
            self._sleep(min(wait, _LOOK_S))
        self._checked, self._used = self._clock(), self._processor()
        if self._is_lost:
            raise RunLost
        if self.processor_s > self.terms.processor_s:
            raise BudgetSpent

    def step(self, event: LearningEvent) -> LearningRun:
        """Store the run as it is after an event, with its figures, and return it; raises `RunLost`."""
        while True:
            stored = self._runs.read()
            if not self._is_mine(stored):
                raise RunLost
            stored = replace(stored, processor_s=self.processor_s, progress=self.progress)
            after, _ = step(stored, event, self._runs.now())
            if self._runs.swap(after):
                return replace(after, version=after.version + 1)

    def _is_mine(self, stored: LearningRun) -> bool:
        own = self.run
        return (stored.run_id, stored.holder, stored.phase) == (own.run_id, own.holder, "training")

    def _keep(self) -> None:
        while not self._left.wait(_LOOK_S):
            self.look()
