"""How long the rollouts of a policy will take, for whoever is about to start them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prolepsis.cli.output import note, print_table
from prolepsis.policy.model import Policy
from prolepsis.rollout.forecast import ASSUMED, Forecast, forecast


@dataclass(frozen=True, slots=True)
class RuleForecast:
    """One stage of one rule's rollout."""

    rule: str
    stage: Forecast

    def plain(self) -> dict[str, object]:
        """Return it as JSON shows it, in seconds; null where no verdict is to be expected."""
        wait = self.stage.wait
        least, most = (None, None) if wait is None else (_finite(wait.least_s), _finite(wait.most_s))
        return {"rule": self.rule, "stage": self.stage.stage, "least_s": least, "most_s": most}


def forecasts(policy: Policy, requests_per_s: float, replay_sample: float) -> list[RuleForecast]:
    """Return how long each stage takes of every rule that is rolled out; the policy has no errors."""
    return [
        RuleForecast(name, stage)
        for name, terms in policy.named_terms()
        if terms.rollout is not None
        for stage in forecast(
            terms.rollout.settings(terms.guardrails, terms.shadow_percentage), requests_per_s, replay_sample
        )
    ]


def show_forecasts(expected: Sequence[RuleForecast], requests_per_s: float) -> None:
    """Print them as a table, and what they assume."""
    rows = [[one.rule, one.stage.stage, _text(one.stage)] for one in expected]
    print_table(f"expected time to pass, at {requests_per_s:g} requests/s", ["rule", "stage", "four of five"], rows)
    note(f"assumed: {ASSUMED}")


def _text(stage: Forecast) -> str:
    if stage.wait is None:
        return "by hand only: no guardrail decides"
    least, most = stage.wait.least_s, stage.wait.most_s
    return f"{_duration(least)} to {_duration(most)}"


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.0f} s"


def _finite(seconds: float) -> float | None:
    return None if math.isinf(seconds) else round(seconds, 1)
