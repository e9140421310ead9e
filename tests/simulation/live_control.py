"""One comparison with the live control, looked at again and again as its requests end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from prolepsis.control.cost.comparison import Comparison
from tests.simulation.edit_costs import EditTraffic

LOOKS = (40, 60, 80, 100, 120, 140, 160, 180, 200, 250, 300, 400, 550, 750, 1000, 1500, 2500, 5000)
"""Numbers of requests at which bounds are read."""


@dataclass(frozen=True, slots=True)
class Run:
    missed: bool
    """Whether the bounds left out the truth at any look."""
    answered: int | None
    """Requests at the first look whose bounds exclude 0."""


def run(traffic: EditTraffic, seed: int, number: int) -> Run:
    """Compare the requests of one seed."""
    requests, comparison, seen = traffic.requests(seed), None, 0
    missed, answered = False, None
    for look in (one for one in LOOKS if one <= number):
        for cost in islice(requests, look - seen):
            assert cost.experiment is not None, "simulated requests are compared"
            comparison = comparison or Comparison(cost.experiment)
            comparison.observe(cost)
        assert comparison is not None, "the first look has requests"
        seen = look
        missed = missed or comparison.excludes(traffic.saving)
        if answered is None and comparison.excludes(0.0):
            answered = look
    return Run(missed, answered)


def quantile(runs: Sequence[Run], level: float) -> float:
    """Return after how many requests this part of the runs has an answer; infinite if it has none."""
    ordered = sorted(one.answered or float("inf") for one in runs)
    return ordered[min(len(ordered) - 1, int(level * len(ordered)))]
