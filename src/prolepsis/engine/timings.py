"""Where the wall time of a step goes, kept for the last steps and in total."""

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

Phase = Literal["schedule", "propose", "forward", "verify", "commit", "learn"]


@dataclass(slots=True)
class StepTiming:
    """Seconds of one step by phase; `schedule` takes in draining the inbox, `learn` is what proposers learn."""

    num_rows: int = 0
    """Tokens of the pass."""
    num_sequences: int = 0
    schedule: float = 0.0
    propose: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    learn: float = 0.0

    def phases(self) -> dict[str, float]:
        """Return seconds by phase."""
        return {
            "schedule": self.schedule,
            "propose": self.propose,
            "forward": self.forward,
            "verify": self.verify,
            "commit": self.commit,
            "learn": self.learn,
        }

    @property
    def total(self) -> float:
        return self.schedule + self.propose + self.forward + self.verify + self.commit + self.learn

    @property
    def outside_forward(self) -> float:
        return self.total - self.forward


@dataclass(slots=True)
class Timings:
    """The last steps, newest last, and sums over all steps that ran a pass."""

    last: deque[StepTiming] = field(default_factory=lambda: deque(maxlen=512))
    totals: StepTiming = field(default_factory=StepTiming)
    num_steps: int = 0

    def add(self, step: StepTiming) -> None:
        """Keep one finished step."""
        self.last.append(step)
        self.num_steps += 1
        totals = self.totals
        totals.num_rows += step.num_rows
        totals.num_sequences += step.num_sequences
        totals.schedule += step.schedule
        totals.propose += step.propose
        totals.forward += step.forward
        totals.verify += step.verify
        totals.commit += step.commit
        totals.learn += step.learn

    def start(self) -> "StepClock":
        """Return the clock of a step that begins now."""
        return StepClock(self)


class StepClock:
    """Times one step: each call adds the time since the last to the phase of that name, `done` keeps the step."""

    def __init__(self, timings: Timings) -> None:
        self.timing = StepTiming()
        self._timings = timings
        self._last = time.perf_counter()

    def __call__(self, phase: Phase) -> None:
        now = time.perf_counter()
        setattr(self.timing, phase, getattr(self.timing, phase) + now - self._last)
        self._last = now

    def done(self, num_rows: int, num_sequences: int) -> StepTiming:
        self.timing.num_rows, self.timing.num_sequences = num_rows, num_sequences
        self._timings.add(self.timing)
        return self.timing
