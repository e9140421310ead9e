"""One comparison with the live control, looked at again and again as its requests end."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from prolepsis.control.cost.comparison import Comparison
from prolepsis.control.verdict.verdict import LITTLE, RuleReadings, judge_rule
from prolepsis.core.reasons import VerdictReason
from tests.simulation.edit_costs import EditTraffic

LOOKS = (40, 60, 80, 100, 120, 140, 160, 180, 200, 250, 300, 400, 550, 750, 1000, 1500, 2500, 5000)
"""Numbers of requests at which bounds are read."""


@dataclass(frozen=True, slots=True)
class Run:
    missed: bool
    """Whether the bounds left out the truth at any look."""
    decided: int | None
    """Requests at the first look with a verdict, with which a pilot ends."""
    wrong: bool
    """Whether that verdict keeps what saves nothing, or stops what pays."""


def run(traffic: EditTraffic, seed: int, number: int) -> Run:
    """Compare the requests of one seed."""
    requests, comparison, seen = traffic.requests(seed), None, 0
    missed, decided, wrong = False, None, False
    for look in (one for one in LOOKS if one <= number):
        for cost in islice(requests, look - seen):
            assert cost.experiment is not None, "simulated requests are compared"
            comparison = comparison or Comparison(cost.experiment)
            comparison.observe(cost)
        assert comparison is not None, "the first look has requests"
        seen = look
        missed = missed or comparison.excludes(traffic.saving)
        if decided is None and (comparison.excludes(0.0) or comparison.excludes(LITTLE)):
            verdict = judge_rule(RuleReadings(rule="edits", rollout="edits@1", compared=next(comparison.compared())))
            decided = look if verdict.answer in ("keep", "stop") else None
            wrong = decided is not None and not _is_right(verdict.reason, traffic.saving)
    return Run(missed, decided, wrong)


def _is_right(reason: VerdictReason, saving: float) -> bool:
    if reason == "pays":
        return saving > 0.0
    return saving < (0.0 if reason == "costs_more" else LITTLE)


def quantile(runs: Sequence[Run], level: float) -> float:
    """Return after how many requests this part of the runs has a verdict; infinite if it has none."""
    ordered = sorted(one.decided or float("inf") for one in runs)
    return ordered[min(len(ordered) - 1, int(level * len(ordered)))]
