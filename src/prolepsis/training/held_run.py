"""The run while a process trains for it: its lease, its pauses and its budget."""

import json
import time
from collections.abc import Callable
from dataclasses import replace

from prolepsis.control.learning.machine import LearningEvent, Taken, step
from prolepsis.control.policy.learning_terms import LearningTerms
from prolepsis.control.store.lineage import RunTable
from prolepsis.core.errors import StoreUnavailable
from prolepsis.core.learning import LearningRun

LEASE_S = 300.0  # a run whose process is gone is free after it
_RENEW_S, _LOOK_S = 60.0, 2.0


class RunLost(Exception):
    """The run is another process's by now, or has ended."""


class BudgetSpent(Exception):
    """The run's processor seconds are spent."""


class HeldRun:
    """Each step of the run is compared with what is stored: a server, a hand or another process may have changed it."""

    def __init__(
        self,
        runs: RunTable,
        run: LearningRun,
        *,
        processor: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`run` is held by this process. `processor` counts seconds."""
        self.run = run
        self.terms = LearningTerms.model_validate_json(json.dumps(dict(run.terms)))
        self.progress, self.report = run.progress, run.report
        self._runs, self._processor, self._sleep = runs, processor, sleep
        self._spent_before = run.processor_s - processor()

    @property
    def processor_s(self) -> float:
        """Processor seconds of the run so far, those of other processes before this one too."""
        return self._spent_before + self._processor()

    def check(self) -> None:
        """Renew the lease, and wait while requests run beside the run; called between two pieces of work.

        Raises `RunLost` and `BudgetSpent`.
        """
        while (pause := self._pause()) > 0.0:
            self._sleep(min(pause, _LOOK_S))
        if self.processor_s > self.terms.processor_s:
            raise BudgetSpent

    def step(self, event: LearningEvent) -> LearningRun:
        """Store the run as it is after an event, with its figures, and return it; one that is lost stays as it is."""
        while True:
            stored = self._runs.read()
            if not self._is_mine(stored):
                return stored
            figures = replace(stored, processor_s=self.processor_s, progress=self.progress, report=self.report)
            after, _ = step(figures, event, self._runs.now())
            if self._runs.swap(after):
                return replace(after, version=after.version + 1)

    def _pause(self) -> float:
        """Renew the lease where that is due, and return the seconds for which the run pauses; raises `RunLost`."""
        try:
            stored, now = self._runs.read(), self._runs.now()
            if stored.leased_until < now + LEASE_S - _RENEW_S:
                stored = self.step(Taken(self.run.holder, now + LEASE_S))
        except StoreUnavailable:  # the lease lasts for minutes, and the next check comes before
            return 0.0
        if not self._is_mine(stored):
            raise RunLost
        return stored.paused_until - now

    def _is_mine(self, stored: LearningRun) -> bool:
        return (stored.run_id, stored.holder, stored.phase) == (self.run.run_id, self.run.holder, "training")
