"""What guardrails may ask: the metrics a server measures of finished requests, by the names policies use."""

from dataclasses import dataclass
from typing import Literal

from prolepsis.control.verdicts.means import FINE, Better, Difference, Limit
from prolepsis.control.verdicts.quantiles import QuantileLimit, QuantileRatio

Value = Literal[
    "acceptance", "error", "validity", "first_token_ms", "latency_per_token_ms", "latency_ms", "correctness"
]
"""What one finished request shows; one that does not apply to a request is left out."""

Metric = Literal[
    "acceptance_rate",
    "error_rate",
    "structured_validity",
    "time_to_first_token_p95_ms",
    "latency_per_token_p50_ms",
    "latency_per_token_p95_ms",
    "latency_p95_ms",
    "correctness",
]

UNMEASURED = {
    "cost_per_token": "no prices are kept yet",
}
"""Metrics that people will look for and no server measures, with the reason."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a metric is, and how it is tested."""

    text: str
    value: Value
    better: Better = "lower"
    level: float | None = None
    """The quantile that it is; None: a mean of values in [0, 1]."""
    has_control: bool = True
    """Requests that are decoded plainly have it too, so it can be compared."""

    @property
    def highest(self) -> float:
        return 1.0 if self.level is None else float("inf")

    def compared(self, margin: float) -> Difference | QuantileRatio:
        """Return the test against the control."""
        assert self.has_control, "plain requests have the metric"
        return Difference(margin=margin) if self.level is None else QuantileRatio(level=self.level, margin=margin)

    def limited(self, limit: float) -> Limit | QuantileLimit:
        """Return the test of the canary alone."""
        if self.level is not None:
            return QuantileLimit(level=self.level, limit=limit)
        return Limit(limit=limit, num_knots=FINE if self.value == "acceptance" else 2)


METRICS: dict[Metric, Meaning] = {
    "acceptance_rate": Meaning("accepted / drafted tokens", "acceptance", "higher", has_control=False),
    "error_rate": Meaning("requests that failed / requests", "error"),
    "structured_validity": Meaning("answers of the form asked for / answers with a form", "validity", "higher"),
    "time_to_first_token_p95_ms": Meaning(
        "95th percentile of the time to the first token", "first_token_ms", level=0.95
    ),
    "latency_per_token_p50_ms": Meaning("median of a request's time between tokens", "latency_per_token_ms", level=0.5),
    "latency_per_token_p95_ms": Meaning(
        "95th percentile of a request's time between tokens", "latency_per_token_ms", level=0.95
    ),
    "latency_p95_ms": Meaning("95th percentile of the time of a request", "latency_ms", level=0.95),
    "correctness": Meaning("requests with the tokens of plain decoding / requests replayed", "correctness", "higher"),
}
