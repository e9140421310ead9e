from itertools import count

from prolepsis.engine.timings import Timings, timed


class Worker:
    """Takes one tick of its clock in each method."""

    def __init__(self) -> None:
        ticks = count()
        self.timings = Timings(clock=lambda: float(next(ticks)))

    @timed("verify")
    def verify(self) -> str:
        return "verified"


def test_phases_are_timed_by_the_clock_given() -> None:
    worker = Worker()
    worker.timings.begin()
    assert worker.verify() == worker.verify() == "verified"
    step = worker.timings.finish(num_tokens=3, num_sequences=1)
    assert (step.verify, step.outside_forward, step.forward) == (2.0, 2.0, 0.0)
    assert worker.timings.totals.verify == 2.0
