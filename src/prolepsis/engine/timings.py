"""Wall time of a step by phase, kept for the last steps and in total."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, TypeVarTuple, get_args

Phase = Literal["schedule", "propose", "forward", "verify", "commit", "learn"]
PHASES: tuple[Phase, ...] = get_args(Phase)


@dataclass(slots=True)
class StepTiming:
    """Seconds of one step by phase; `schedule` includes draining the inbox, `learn` is the time of proposers."""

    num_tokens: int = 0
    num_sequences: int = 0
    schedule: float = 0.0
    propose: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    learn: float = 0.0

    def phases(self) -> dict[str, float]:
        return {phase: getattr(self, phase) for phase in PHASES}

    @property
    def total(self) -> float:
        return sum(self.phases().values())


@dataclass(slots=True)
class Timings:
    """The step that runs, the last steps, newest last, and sums over all steps that ran a pass.

    `clock`: seconds of wall time, or of a thread's processor time to measure what a step itself takes.
    """

    step: StepTiming = field(default_factory=StepTiming)
    last: deque[StepTiming] = field(default_factory=lambda: deque(maxlen=512))
    totals: StepTiming = field(default_factory=StepTiming)
    num_steps: int = 0
    clock: Callable[[], float] = time.perf_counter

    def begin(self) -> None:
        """Begin to time a step; one that did not finish is dropped."""
        self.step = StepTiming()

    def finish(self, num_tokens: int, num_sequences: int) -> StepTiming:
        self.step.num_tokens, self.step.num_sequences = num_tokens, num_sequences
        self.add(self.step)
        return self.step

    def add(self, step: StepTiming) -> None:
        self.last.append(step)
        self.num_steps += 1
        totals = self.totals  # line by line: every step pays for this
        totals.num_tokens += step.num_tokens
        totals.num_sequences += step.num_sequences
        totals.schedule += step.schedule
        totals.propose += step.propose
        totals.forward += step.forward
        totals.verify += step.verify
        totals.commit += step.commit
        totals.learn += step.learn


class Timed(Protocol):
    timings: Timings


_Owner = TypeVar("_Owner", bound=Timed)
_Args = TypeVarTuple("_Args")
_Result = TypeVar("_Result")
_Method = Callable[[_Owner, *_Args], _Result]


def timed(phase: Phase) -> Callable[[_Method[_Owner, *_Args, _Result]], _Method[_Owner, *_Args, _Result]]:
    """Return a decorator that adds a method's time to a phase of the step that runs."""

    def decorate(method: _Method[_Owner, *_Args, _Result]) -> _Method[_Owner, *_Args, _Result]:
        def run(self: _Owner, *args: *_Args) -> _Result:
            clock, step = self.timings.clock, self.timings.step
            start = clock()
            try:
                return method(self, *args)
            finally:
                setattr(step, phase, getattr(step, phase) + clock() - start)

        return run

    return decorate
