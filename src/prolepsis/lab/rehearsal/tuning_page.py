"""A tuning as a table, and as a page with its frontier: one file of HTML, which needs nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.core.units import figure
from prolepsis.lab.rehearsal.tune import Tuning, TuningGoal, TuningTrial
from prolepsis.ops.console.render import page_alone

HEADING = ("changed", "mean time", "machine s per million tokens", "goodput", "refused")
_LEFT, _TOP, _WIDTH, _HEIGHT = 60.0, 16.0, 530.0, 214.0
"""Where points are, in the picture's own coordinates."""


@dataclass(frozen=True, slots=True)
class TuningPage:
    """A tuning, and what it is of."""

    tuning: Tuning
    goal: TuningGoal
    trace: str
    """Name of its file; so is the next."""
    machine: str
    policy: str
    """Text of the policy that was found."""

    def rows(self) -> list[list[str]]:
        """Return the frontier, where the search began, and the best, under `HEADING`."""
        tuning = self.tuning
        marks = {id(tuning.trials[0]): "as it is", id(tuning.best): f"best for {self.goal}: {tuning.best.changed}"}
        shown = [one for one in tuning.trials if one in tuning.frontier or id(one) in marks]
        return [_row(one, marks.get(id(one), one.changed)) for one in shown]

    def html(self) -> str:
        times, costs = (sorted(values) for values in zip(*map(_at, self.tuning.trials), strict=True))
        best_last = sorted(self.tuning.trials, key=lambda one: one is self.tuning.best)
        return page_alone(
            "lab/rehearsal/templates/tuning.html",
            page=self,
            heading=HEADING,
            points=[(*self._place(one), self._kind(one), one.changed or "as it is") for one in best_last],
            frontier=[self._place(one) for one in self.tuning.frontier],
            ends={"times": [figure(times[0]), figure(times[-1])], "costs": [figure(costs[0]), figure(costs[-1])]},
        )

    def _place(self, trial: TuningTrial) -> tuple[float, float]:
        x, y = (
            _share(value, values)
            for value, values in zip(_at(trial), zip(*map(_at, self.tuning.trials), strict=True), strict=True)
        )
        return round(_LEFT + _WIDTH * x, 1), round(_TOP + _HEIGHT * (1.0 - y), 1)

    def _kind(self, trial: TuningTrial) -> str:
        if trial is self.tuning.best:
            return "best"
        return "frontier" if trial in self.tuning.frontier else "trial"


def _at(trial: TuningTrial) -> tuple[float, float]:
    return trial.latency_s, trial.machine_s_per_million


def _share(value: float, among: Sequence[float]) -> float:
    low, high = min(among), max(among)
    return (value - low) / (high - low) if high > low else 0.5


def _row(trial: TuningTrial, words: str) -> list[str]:
    figures = [f"{trial.latency_s:.3f} s", f"{trial.machine_s_per_million:.0f}", f"{trial.goodput:.2f}/s"]
    return [words, *figures, str(trial.num_refused)]
